// Joins runs of the `serve` example with the unmodified `@ag-ui/client`: node rejoin.mjs SERVE FOLDER
//
// Streams are cut at several events, and the client continues them from the last id that it has. Then the server is
// killed in the middle of a run, after its tool, and started again. The client joins the run that the new process
// has resumed, and the tool has run once.

import { HttpAgent, runHttpRequest, transformHttpEventStream } from "@ag-ui/client";
import { spawn } from "node:child_process";
import { once } from "node:events";
import { readFileSync, writeFileSync } from "node:fs";
import { createServer } from "node:http";
import { createInterface } from "node:readline";
import { check, checkStream, watchWarnings, within } from "./common.mjs";

const [binary, folder] = process.argv.slice(2);
const warnings = watchWarnings();
const report = console.error;
const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

/** A provider that answers slowly, and after a tool only while it is `open`. */
const provider = { open: false, calls: 0 };
const upstream = createServer(async (request, response) => {
  let body = "";
  for await (const piece of request) body += piece;
  const last = JSON.parse(body).messages.at(-1);
  provider.calls += 1;
  response.writeHead(200, { "content-type": "text/event-stream" });
  const send = (delta, finish_reason = null) => {
    const choices = [{ index: 0, delta, finish_reason }];
    const chunk = { id: "c", object: "chat.completion.chunk", model: "slow", choices };
    response.write(`data: ${JSON.stringify(chunk)}\n\n`);
  };
  if (last.role === "tool") {
    send({ role: "assistant", content: "It is " });
    while (!provider.open && !response.destroyed) await sleep(20);
    send({ content: "written." });
    send({}, "stop");
  } else if (last.content.startsWith("write")) {
    const call = { name: "write_file", arguments: '{"path":"note.txt","text":"hello"}' };
    send({ tool_calls: [{ index: 0, id: "call_1", type: "function", function: call }] });
    send({}, "tool_calls");
  } else {
    for (let n = 0; n < 12; n++) {
      send({ content: `piece ${n} ` });
      await sleep(5);
    }
    send({}, "stop");
  }
  response.end("data: [DONE]\n\n");
});
upstream.listen(0, "127.0.0.1");
await once(upstream, "listening");

async function start() {
  const env = {
    ...process.env,
    PORT: "0",
    CONCENTRIC_DB: `${folder}/runs.db`,
    OPENAI_BASE_URL: `http://127.0.0.1:${upstream.address().port}`,
  };
  delete env.OPENAI_API_KEY;
  const server = spawn(binary, { cwd: folder, env, stdio: ["ignore", "ignore", "pipe"] });
  for await (const line of createInterface({ input: server.stderr })) {
    const url = /http:[^ ]*agent/.exec(line)?.[0];
    if (url) {
      server.stderr.resume();
      return { server, url };
    }
  }
  throw new Error("the server did not start");
}

const eventsUrl = (url, { threadId, runId }) => `${url}/threads/${threadId}/runs/${runId}/events`;

/** Passes whole frames on until `most` were passed; returns the id of the last one, or nothing at the end. */
async function pass(response, most, last, controller) {
  check(response.status === 200, `status ${response.status}`);
  let text = "";
  const decoder = new TextDecoder();
  for await (const bytes of response.body) {
    text += decoder.decode(bytes, { stream: true });
    for (let end; (end = text.indexOf("\n\n")) >= 0; text = text.slice(end + 2)) {
      const frame = text.slice(0, end + 2);
      if (!frame.startsWith("id: ")) continue;
      const id = frame.slice(4, frame.indexOf("\n"));
      check(Number.parseInt(id) === Number.parseInt(last) + 1, `${id} follows ${last}`);
      last = id;
      controller.enqueue(new TextEncoder().encode(frame));
      if (--most === 0) return last;
    }
  }
}

/** A `fetch` whose connections are cut after these numbers of events, and which continues the stream. */
const cutting = (...cuts) => async (url, init) => {
  const input = JSON.parse(init.body);
  const body = new ReadableStream({
    async start(controller) {
      let response = await fetch(url, init);
      let last = "0";
      for (;;) {
        last = await pass(response, cuts.shift() ?? -1, last, controller);
        if (last === undefined) return controller.close();
        response = await fetch(`${eventsUrl(url, input)}?after=${last}`);
      }
    },
  });
  return new Response(body, { headers: { "content-type": "text/event-stream" } });
};

/** Joins a run, as `connectAgent` expects it. */
class Joining extends HttpAgent {
  connect({ threadId }) {
    const url = eventsUrl(this.url, { threadId, runId: this.joined });
    return transformHttpEventStream(runHttpRequest(() => fetch(url)));
  }
}

async function run(what, agent, start) {
  const events = [];
  const subscriber = { onEvent: ({ event }) => void events.push(event) };
  const { newMessages } = await within(20, what, start(subscriber));
  const outcome = events.at(-1)?.outcome?.type;
  return { events, newMessages, outcome, types: events.map(({ type }) => type) };
}

let { server, url } = await start();
try {
  // The same run, with connections that are cut anywhere.
  const text = Array.from({ length: 12 }, (_, n) => `piece ${n} `).join("");
  for (const cuts of [[], [1], [2], [3], [7], [4, 1, 1, 2], [15], [16]]) {
    const agent = new HttpAgent({ url, fetch: cutting(...cuts) });
    agent.addMessage({ id: crypto.randomUUID(), role: "user", content: "hello" });
    const { events, newMessages } = await run("cut", agent, (it) => agent.runAgent({}, it));
    checkStream(`cut after ${cuts}`, events, "RUN_FINISHED");
    check(newMessages.at(-1).content === text, `cut after ${cuts}: ${newMessages.at(-1).content}`);
  }
  console.log("rejoin: streams that were cut are complete");

  // A run is approved, and its process is killed after the tool.
  const threadId = crypto.randomUUID();
  const agent = new Joining({ url, threadId });
  agent.addMessage({ id: crypto.randomUUID(), role: "user", content: "write hello to note.txt" });
  const asked = await run("ask", agent, (it) => agent.runAgent({}, it));
  check(asked.outcome === "interrupt", `the outcome is ${asked.outcome}`);
  const [{ id: interruptId }] = asked.events.at(-1).outcome.interrupts;
  const resume = [{ interruptId, status: "resolved", payload: { approved: true } }];
  const calls = provider.calls;
  const lost = run("approve", agent, (it) => agent.runAgent({ resume }, it)).catch(() => {});
  while (provider.calls === calls) await sleep(5);
  check(readFileSync(`${folder}/note.txt`, "utf8") === "hello", "the tool has not run");
  // The client reports the lost connection more than once.
  const ignore = () => {};
  process.on("unhandledRejection", ignore);
  console.error = ignore;
  server.kill("SIGKILL");
  await lost;
  await sleep(100);
  process.off("unhandledRejection", ignore);
  console.error = report;
  // A second effect would replace this.
  writeFileSync(`${folder}/note.txt`, "changed");

  ({ server, url } = await start());
  provider.open = true;
  const threads = `${url}/threads/${threadId}`;
  const get = async (path) => (await fetch(threads + path)).json();
  const { runs } = await get("/runs");
  check(runs.length === 1, `unfinished runs: ${JSON.stringify(runs)}`);
  const [{ runId }] = runs;
  // The new process resumes it when the lease of the old one has ended.
  await within(
    15,
    "the run is resumed",
    (async () => {
      while ((await fetch(`${threads}/runs/${runId}/events`, { method: "HEAD" })).status === 204) {
        await sleep(100);
      }
    })(),
  );
  const joined = new Joining({ url, threadId });
  joined.joined = runId;
  const { events, types } = await run("join", joined, (it) => joined.connectAgent({}, it));
  checkStream("joined run", events, "RUN_FINISHED");
  check(types[1] === "MESSAGES_SNAPSHOT", `the events are ${types.join(" ")}`);
  const roles = joined.messages.map(({ role }) => role).join(" ");
  check(roles === "user assistant tool assistant", `the messages are of ${roles}`);
  check(joined.messages.at(-1).content === "It is written.", joined.messages.at(-1).content);
  check(readFileSync(`${folder}/note.txt`, "utf8") === "changed", "the tool has run twice");
  const status = await get(`/runs/${runId}`);
  check(status.status === "ended" && status.outcome.type === "success", JSON.stringify(status));
  const stored = await get("");
  const kept = stored.messages.map(({ role }) => role).join(" ");
  check(kept === roles, `the thread has messages of ${kept}`);
  check(warnings.length === 0, `the client repaired the stream: ${warnings.join("; ")}`);
  console.log("rejoin: the run of a killed server was resumed, and its tool has run once");
} catch (error) {
  console.error(`rejoin: ${error.stack}`);
  process.exitCode = 1;
} finally {
  server.kill("SIGKILL");
  process.exit();
}
