// Runs the unmodified `@ag-ui/client` against a server of ours: node ag_ui.mjs [--expect-error] URL
//
// Without the flag: a text answer, then a tool round in the same conversation. With it: one run
// that must fail, and say so with RUN_ERROR as its last event (the client's promise resolves either
// way). The client checks every event against the protocol's schema and its order by itself.

import { HttpAgent } from "@ag-ui/client";
import {
  FOLDER,
  HELLO,
  check,
  checkStream,
  checkToolRound,
  script,
  watchWarnings,
  within,
} from "./common.mjs";

await script("ag_ui", ["--expect-error"], async (url, flags) => {
  const warnings = watchWarnings();
  const agent = new HttpAgent({ url });

  const run = async (what, content) => {
    const events = [];
    const refused = [];
    agent.addMessage({ id: crypto.randomUUID(), role: "user", content });
    const { newMessages } = await within(
      60,
      what,
      agent.runAgent(
        {},
        {
          onEvent: ({ event }) => void events.push(event),
          onRunFailed: ({ error }) => void refused.push(error.message),
        },
      ).catch((error) => {
        refused.push(error.message);
        return { newMessages: [] };
      }),
    );
    return { events, refused, newMessages };
  };

  if (flags.has("--expect-error")) {
    const { events, refused } = await run("failing run", HELLO);
    checkStream("failing run", events, "RUN_ERROR");
    const { message } = events.at(-1);
    check(message.length > 0, "failing run: RUN_ERROR says nothing");
    // What the client adds to the server's own message would be a rule that the stream broke.
    const others = refused.filter((reason) => !reason.includes(message));
    check(others.length === 0, `failing run: the client refused it: ${others.join("; ")}`);
    check(warnings.length === 0, `the client repaired the stream: ${warnings.join("; ")}`);
    console.log(`ag_ui: failing run: RUN_ERROR "${message}"`);
    return;
  }

  for (const [what, prompt] of [
    ["text answer", HELLO],
    ["tool round", FOLDER],
  ]) {
    const { events, refused, newMessages } = await run(what, prompt);
    check(refused.length === 0, `${what}: the client refused it: ${refused.join("; ")}`);
    checkStream(what, events, "RUN_FINISHED");
    const answer = newMessages.findLast(({ role }) => role === "assistant");
    check(answer?.content?.trim(), `${what}: no text in the last message`);
    if (prompt === FOLDER) {
      checkToolRound(what, events);
      check(
        newMessages.some(({ role, content }) => role === "tool" && content.length > 0),
        `${what}: no tool message in the conversation`,
      );
    }
    console.log(`ag_ui: ${what}: ${events.length} events, "${answer.content}"`);
  }
  check(warnings.length === 0, `the client repaired the stream: ${warnings.join("; ")}`);
});
