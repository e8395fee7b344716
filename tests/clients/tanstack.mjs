// Runs the unmodified `@tanstack/ai-client` against a server of ours: node tanstack.mjs URL
//
// A text answer, then a tool round in the same conversation. The client makes up a RUN_FINISHED for
// a stream that stops without one, so the events that are checked here are those on the wire; that
// the client understood them shows in its messages.

import { ChatClient, fetchServerSentEvents } from "@tanstack/ai-client";
import {
  FOLDER,
  HELLO,
  check,
  checkStream,
  checkToolRound,
  readEvents,
  script,
  within,
} from "./common.mjs";

await script("tanstack", [], async (url) => {
  let wire = Promise.resolve("");
  const errors = [];
  const fetchClient = async (...request) => {
    const response = await fetch(...request);
    wire = response.clone().text();
    return response;
  };
  const client = new ChatClient({
    connection: fetchServerSentEvents(url, { fetchClient }),
    onError: (error) => void errors.push(error.message),
  });

  for (const [what, prompt] of [
    ["text answer", HELLO],
    ["tool round", FOLDER],
  ]) {
    await within(60, what, client.sendMessage(prompt));
    check(errors.length === 0, `${what}: ${errors.join("; ")}`);
    const events = readEvents(what, await within(60, what, wire));
    checkStream(what, events, "RUN_FINISHED");

    // What the person asked, and everything since.
    const messages = client.getMessages();
    const turn = messages.slice(messages.findLastIndex(({ role }) => role === "user") + 1);
    const parts = turn.filter(({ role }) => role === "assistant").flatMap(({ parts }) => parts);
    const text = parts.findLast(({ type }) => type === "text")?.content;
    check(text?.trim(), `${what}: no text in the last message`);
    if (prompt === FOLDER) {
      checkToolRound(what, events);
      const call = parts.find(({ type }) => type === "tool-call");
      check(call, `${what}: no tool call in the conversation`);
      const result = parts.find(
        ({ type, toolCallId }) => type === "tool-result" && toolCallId === call.id,
      );
      check(result, `${what}: no tool result in the conversation`);
      check(result.state !== "error", `${what}: the tool failed`);
    }
    console.log(`tanstack: ${what}: ${events.length} events, "${text}"`);
  }
});
