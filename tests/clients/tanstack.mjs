// Runs the unmodified `@tanstack/ai-client` against a server of ours:
// node tanstack.mjs [--approval] [--prompt=TEXT] URL
//
// A text answer, then a tool round in the same conversation; with the flag, calls that are asked
// about, in one conversation, and are answered by hand and by the client's own forms. The client makes up a RUN_FINISHED for
// a stream that stops without one, so the events that are checked here are those on the wire; that
// the client understood them shows in its messages.

import { ChatClient, fetchServerSentEvents } from "@tanstack/ai-client";
import {
  FOLDER,
  HELLO,
  REFUND,
  check,
  checkStream,
  checkToolRound,
  option,
  readEvents,
  script,
  within,
} from "./common.mjs";

await script("tanstack", ["--approval", "--prompt="], async (url, flags) => {
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

  if (flags.has("--approval")) {
    const prompt = option(flags, "--prompt=") ?? REFUND;
    /** Waits until the client has sent its answers and read what follows. */
    const resumed = async (what) => {
      await within(
        60,
        what,
        (async () => {
          while (client.getInterruptState().resuming || client.getIsLoading()) {
            await new Promise((resolve) => setTimeout(resolve, 10));
          }
        })(),
      );
      const failed = client.getInterruptState().interruptErrors;
      check(failed.length === 0, `${what}: ${JSON.stringify(failed)}`);
    };
    const each = (answer) => async (what, asked) => {
      for (const interrupt of asked) answer(interrupt);
      await resumed(what);
    };
    for (const [what, answer, expected] of [
      [
        "approval by hand",
        (what, asked) => {
          const resume = asked.map(({ interruptId, metadata }) => ({
            interruptId,
            status: "resolved",
            payload: { approved: true, ...(metadata?.token && { token: metadata.token }) },
          }));
          return within(60, what, client.resumeInterrupts(resume));
        },
        undefined,
      ],
      ["approval by the client's form", each((one) => one.resolveInterrupt({ approved: true })), undefined],
      [
        "denial by the client's form",
        each((one) => one.resolveInterrupt({ approved: false, reason: "too much" })),
        "denied",
      ],
      ["cancellation by the client's form", each((one) => one.cancel()), "cancelled"],
      [
        "approval of all at once",
        async (what) => {
          client.resolveInterrupts((one) => void one.resolveInterrupt({ approved: true }));
          await resumed(what);
        },
        undefined,
      ],
    ]) {
      await within(60, what, client.sendMessage(prompt));
      check(errors.length === 0, `${what}: ${errors.join("; ")}`);
      checkStream(what, readEvents(what, await within(60, what, wire)), "RUN_FINISHED");
      const asked = client.getInterrupts();
      check(asked.length > 0, `${what}: the client knows of no question`);
      for (const { kind, canResolve, error } of asked) {
        check(kind !== "unbound", `${what}: the interrupt is unbound`);
        check(canResolve === true, `${what}: it cannot be resolved: ${JSON.stringify(error)}`);
      }
      await answer(what, asked);
      check(errors.length === 0, `${what}: ${errors.join("; ")}`);
      const events = readEvents(what, await within(60, what, wire));
      checkStream(what, events, "RUN_FINISHED");
      const invalid = events.filter(({ name }) => name === "approval-invalid");
      check(invalid.length === 0, `${what}: ${JSON.stringify(invalid)}`);
      check(client.getInterrupts().length === 0, `${what}: it is asked again`);
      const results = events.filter(({ type }) => type === "TOOL_CALL_RESULT");
      check(results.length >= asked.length, `${what}: ${results.length} results`);
      check(
        results.every(({ metadata }) => metadata?.status === expected),
        `${what}: ${JSON.stringify(results)}`,
      );
      console.log(`tanstack: ${what}: ${events.length} events`);
    }
    return;
  }

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
