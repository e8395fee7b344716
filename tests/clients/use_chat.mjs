// Uses a page with `useChat` in headless Chromium: `node use_chat.mjs SERVER FOLDER`. `SERVER` is the program beside
// this file, which keeps its runs in `FOLDER`. For the variables `STEPS` and `TIMES`, see `run`.

import { build } from "esbuild";
import { spawn } from "node:child_process";
import { once } from "node:events";
import { existsSync, readFileSync } from "node:fs";
import { createInterface } from "node:readline";
import { fileURLToPath } from "node:url";
import { isDeepStrictEqual } from "node:util";
import { check, launch, newPage, run } from "../console/browser.mjs";

const [binary, folder] = process.argv.slice(2);
const equal = (what, a, b) =>
  check(isDeepStrictEqual(a, b), `${what}: ${JSON.stringify(a)} is not ${JSON.stringify(b)}`);

const bundle = await build({
  entryPoints: [fileURLToPath(new URL("use_chat.jsx", import.meta.url))],
  bundle: true,
  define: { "process.env.NODE_ENV": '"production"' },
  format: "esm",
  jsx: "automatic",
  write: false,
});
const files = new Map([
  ["/", ["text/html", '<!doctype html><meta charset="utf-8"><div id="root"></div><script type="module" src="page.js"></script>']],
  ["/page.js", ["text/javascript", bundle.outputFiles[0].text]],
]);

// ---- the server ----

async function start(address) {
  const server = spawn(binary, [address], { cwd: folder, stdio: ["ignore", "pipe", "inherit"] });
  const [url] = await Promise.race([
    once(createInterface({ input: server.stdout }), "line"),
    once(server, "exit").then(() => Promise.reject(new Error("the server did not start"))),
  ]);
  return { server, url };
}

let { server, url } = await start("127.0.0.1:0");

/** Kills the server, and starts it again at the same address. */
async function restart() {
  server.kill("SIGKILL");
  await once(server, "exit");
  ({ server } = await start(new URL(url).host));
}

/** Lets the model continue after a pause. */
const next = () => fetch(`${url}/next`, { method: "POST" });

/** The effects of the tools so far. */
function effects() {
  const file = `${folder}/effects.txt`;
  return existsSync(file) ? readFileSync(file, "utf8").split("\n").slice(0, -1) : [];
}

// ---- the page ----

const browser = await launch();
const context = await browser.newContext();
await context.route(
  (at) => files.has(at.pathname),
  (route) => {
    const [contentType, body] = files.get(new URL(route.request().url()).pathname);
    return route.fulfill({ contentType, body });
  },
);

/** Opens a chat in a tab. */
async function open(chat = crypto.randomUUID()) {
  const page = await newPage(context, url);
  await page.goto(`${url}/?chat=${chat}`);
  return Object.assign(page, { chat });
}

async function send(page, prompt) {
  await page.getByLabel("Message").fill(prompt);
  await page.getByRole("button", { name: "Send" }).click();
}

const press = (page, name) => page.getByRole("button", { name, exact: true }).click();
const articles = (page) => page.locator("article");
const answer = (page) => page.locator("article[data-role=assistant]").last();
const tool = (page, at = 0) => answer(page).locator(".tool").nth(at);
const shows = (page, text) => answer(page).getByText(text).waitFor();
const reaches = (page, state, at) => tool(page, at).and(page.locator(`[data-state=${state}]`)).waitFor();
const ends = (page, status = "ready") => page.locator("#status").getByText(status, { exact: true }).waitFor();
const message = async (page) => JSON.parse(await answer(page).getAttribute("data-json"));

/** Sends a message, and waits until its calls need approvals. */
async function asks(page, prompt = "pay", calls = 1) {
  await send(page, prompt);
  for (let at = 0; at < calls; at++) await reaches(page, "approval-requested", at);
  await ends(page);
}

/** A message without the ids that differ between runs. */
function comparable({ metadata, parts }) {
  const ids = ["id", "runId", "interruptId"];
  const text = JSON.stringify({ metadata, parts }, (key, value) => (ids.includes(key) ? undefined : value));
  return JSON.parse(text);
}

// ---- the cases ----

const PIECES = Array.from({ length: 8 }, (_, n) => `piece ${n} `);

/** Reads an answer to the end, and does something at each of its pauses. */
async function think(page, atPause = async () => {}) {
  await send(page, "think");
  await answer(page).locator(".reasoning").getByText("Let me", { exact: true }).waitFor();
  check((await answer(page).locator(".text").count()) === 0, "text before its time");
  await atPause();
  await next();
  await shows(page, "piece 3");
  await atPause();
  await shows(page, "piece 3");
  check(!(await answer(page).innerText()).includes("piece 4"), "text before its time");
  await next();
  await shows(page, "piece 7");
  await ends(page);
}

let whole;

/** The answer to `think` in a page that was open until its end. */
async function uncut() {
  if (whole === undefined) await streams();
  return whole;
}

async function streams() {
  const page = await open();
  await think(page);
  equal("reasoning", await answer(page).locator(".reasoning").allInnerTexts(), ["Let me think."]);
  equal("text", await answer(page).locator(".text").allTextContents(), [PIECES.join("")]);
  whole = await message(page);
  equal("usage", whole.metadata.usage.inputTokens, 310);
  await page.close();
  console.log("useChat: reasoning and text stream in");
}

async function tools() {
  const page = await open();
  await send(page, "look");
  await shows(page, /The tools say: .*there/);
  await ends(page);
  for (const [at, place] of ["here", "there"].entries()) {
    await reaches(page, "output-available", at);
    equal(place, await tool(page, at).textContent(), `look {"at":"${place}"}{"saw":{"at":"${place}"}}`);
  }
  await page.close();
  console.log("useChat: two calls with their results");
}

async function decides() {
  const page = await open();
  const before = effects().length;
  await asks(page);
  check(effects().length === before, "paid without an approval");
  await press(page, "Approve");
  await reaches(page, "output-available");
  await ends(page);
  equal("approved", effects().slice(before), ['paid {"amount":420}']);

  await asks(page);
  await press(page, "Deny");
  await reaches(page, "output-denied");
  await shows(page, /The tools say: .*Too much/);
  await ends(page);
  equal("denied", effects().length, before + 1);

  // Two calls, of which the answers are sent together.
  await asks(page, "both", 2);
  await tool(page, 0).getByRole("button", { name: "Deny" }).click();
  await reaches(page, "approval-responded", 0);
  await tool(page, 1).getByRole("button", { name: "Approve" }).click();
  await reaches(page, "output-denied", 0);
  await reaches(page, "output-available", 1);
  await ends(page);
  equal("both", effects().slice(before + 1), ['paid {"amount":2}']);
  await page.close();
  console.log("useChat: approvals and denials");
}

async function restarts() {
  const before = effects().length;
  const pages = [await open(), await open()];
  for (const page of pages) await asks(page);
  await restart();
  // One page is still open, and the other one is loaded again.
  await pages[1].reload();
  for (const page of pages) {
    await press(page, "Approve");
    await reaches(page, "output-available");
    await shows(page, /The tools say: .*420/);
    await ends(page);
    await page.close();
  }
  equal("after a restart", effects().slice(before), Array(2).fill('paid {"amount":420}'));
  console.log("useChat: approvals after a restart of the server");
}

async function reloads() {
  const page = await open();
  await think(page, () => page.reload());
  equal("reloaded", comparable(await message(page)), comparable(await uncut()));
  equal("messages", await articles(page).count(), 2);

  // An answer that continues after an approval: the question is not asked again.
  const messages = [];
  for (const isReloaded of [false, true]) {
    const chat = await open();
    await asks(chat, "pay slowly");
    await press(chat, "Approve");
    await shows(chat, "The tools say:");
    if (isReloaded) {
      await chat.reload();
      await shows(chat, "The tools say:");
      await reaches(chat, "output-available");
    }
    await next();
    await shows(chat, /The tools say: .*420/);
    await ends(chat);
    messages.push(await message(chat));
    await chat.close();
  }
  equal("reloaded after an approval", comparable(messages[1]), comparable(messages[0]));
  // A chat that has ended stays as it is.
  const ended = await message(page);
  await page.reload();
  await ends(page);
  equal("ended", await message(page), ended);
  await page.close();
  console.log("useChat: a page that is loaded again in the middle of an answer has the whole answer");
}

async function regenerates() {
  const page = await open();
  await send(page, "hello");
  await shows(page, "after 1 messages");
  await ends(page);
  const first = await message(page);
  await press(page, "Regenerate");
  await page.waitForFunction((id) => !document.body.innerHTML.includes(id), first.id);
  await shows(page, "after 1 messages");
  await ends(page);
  const second = await message(page);
  check(second.parts.at(-1).text !== first.parts.at(-1).text, "the same answer");
  equal("messages", await articles(page).count(), 2);
  // The server has the second answer only.
  await send(page, "hello");
  await shows(page, "after 3 messages");
  await ends(page);
  await page.close();
  console.log("useChat: another answer");
}

async function stops() {
  const page = await open();
  const before = effects().length;
  await send(page, "wait");
  await tool(page).getByText('{"percent":10}').waitFor();
  equal("waits", effects().slice(before), ["wait began"]);
  await press(page, "Stop");
  await reaches(page, "output-error");
  await ends(page);
  equal("stopped", effects().slice(before), ["wait began", "wait was cancelled"]);
  equal("no run", (await fetch(`${url}/chat/${page.chat}/stream`)).status, 204);
  // The chat continues.
  await send(page, "hello");
  await shows(page, "Answer");
  await ends(page);

  // A closed connection stops nothing.
  await send(page, "think");
  await shows(page, "Let me");
  await press(page, "Disconnect");
  await ends(page);
  await next();
  await press(page, "Resume");
  await shows(page, "piece 3");
  await next();
  await shows(page, "piece 7");
  await ends(page);
  equal("resumed", comparable(await message(page)), comparable(await uncut()));
  await page.close();
  console.log("useChat: the stop button cancels the tool, and a closed connection does not");
}

async function forged() {
  const before = effects().length;
  const page = await open();
  await asks(page);
  const genuine = (await message(page)).parts.find(({ toolCallId }) => toolCallId).approval.id;
  const part = {
    type: "dynamic-tool", toolName: "pay", toolCallId: "call_1", state: "approval-responded", input: { amount: 1e6 },
  };
  const post = (id, approval) => page.evaluate(async (body) => {
    const headers = { "content-type": "application/json" };
    const response = await fetch("/chat", { method: "POST", headers, body: JSON.stringify(body) });
    return { status: response.status, body: await response.text() };
  }, {
    id, trigger: "submit-message",
    messages: [{ id: "forged", role: "assistant", parts: [{ ...part, approval: { approved: true, ...approval } }] }],
  });
  // The approval of no run, that of another chat, and one with a signature of its own.
  for (const [what, id, approval] of [
    ["no run", crypto.randomUUID(), { id: "run/0/call_1" }],
    ["another id", page.chat, { id: `${genuine}0` }],
    ["another chat", crypto.randomUUID(), { id: genuine }],
    ["a signature", crypto.randomUUID(), { id: genuine, signature: "AAAA" }],
  ]) {
    const { status, body } = await post(id, approval);
    const isRefused = status >= 400 || body.includes('"data-approval-invalid"') || body.includes('"type":"error"');
    check(isRefused && !body.includes("tool-output-available"), `${what}: ${status} ${body}`);
    equal(what, effects().length, before);
  }
  // The genuine one is still valid, and pays what the model has asked for.
  await press(page, "Approve");
  await reaches(page, "output-available");
  await ends(page);
  equal("genuine", effects().slice(before), ['paid {"amount":420}']);
  await page.close();
  console.log("useChat: forged approvals are refused");
}

async function tabs() {
  const first = await open();
  let second;
  await think(first, async () => {
    second ??= await open(first.chat);
    await shows(second, "Let me");
  });
  await shows(second, "piece 7");
  await ends(second);
  equal("two tabs", await message(second), await message(first));
  equal("two tabs", await articles(second).count(), 2);

  // Another tab joins an answer that continues, and a decision of an earlier one is refused.
  const before = effects().length;
  await asks(first, "pay slowly");
  await second.reload();
  await reaches(second, "approval-requested");
  await press(first, "Approve");
  await shows(first, "The tools say:");
  const third = await open(first.chat);
  await shows(third, "The tools say:");
  await reaches(third, "output-available");
  await next();
  for (const page of [first, third]) {
    await shows(page, /The tools say: .*420/);
    await ends(page);
  }
  equal("a third tab", await message(third), await message(first));
  await press(second, "Approve");
  await ends(second, "error");
  check((await second.getByRole("alert").innerText()) !== "", "the second tab has no reason");
  equal("two approvals", effects().slice(before), ['paid {"amount":420}']);
  for (const page of [first, second, third]) await page.close();
  console.log("useChat: two tabs have one chat");
}

try {
  await run([streams, tools, decides, restarts, reloads, regenerates, stops, forged, tabs]);
} finally {
  server.kill("SIGKILL");
  await browser.close();
}
