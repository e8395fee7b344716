// Runs the unmodified `@ag-ui/client` against an agent whose sub-agents ask:
// node subagents.mjs [--expect-error] URL
//
// All that is asked is approved, one question a run; then the run must be over. With the flag: one
// run that fails while its sub-agents are at work. The client checks every event against the
// protocol's schema and its order by itself.

import { HttpAgent, buildResumeArray } from "@ag-ui/client";
import { check, checkStream, script, watchWarnings, within } from "./common.mjs";

await script("subagents", ["--expect-error"], async (url, flags) => {
  const warnings = watchWarnings();
  const agent = new HttpAgent({ url });
  agent.addMessage({ id: crypto.randomUUID(), role: "user", content: "pay" });

  const run = async (what, terminal, parameters = {}) => {
    const events = [];
    const refused = [];
    await within(
      60,
      what,
      agent
        .runAgent(parameters, {
          onEvent: ({ event }) => void events.push(event),
          onRunFailed: ({ error }) => void refused.push(error.message),
        })
        .catch((error) => void refused.push(error.message)),
    );
    checkStream(what, events, terminal);
    // What the client adds to the server's own message would be a rule that the stream broke.
    const { message } = events.at(-1);
    const others = refused.filter((reason) => !message || !reason.includes(message));
    check(others.length === 0, `${what}: the client refused it: ${others.join("; ")}`);
    const ids = (type) =>
      events.filter((event) => event.type === type).map(({ subagentRunId }) => subagentRunId);
    const over = [...ids("SUBAGENT_FINISHED"), ...ids("SUBAGENT_ERROR")];
    const started = ids("SUBAGENT_STARTED");
    check(
      started.toSorted().join() === over.toSorted().join(),
      `${what}: started are ${started}, over are ${over}`,
    );
    return { events, started };
  };

  if (flags.has("--expect-error")) {
    const { events, started } = await run("failing run", "RUN_ERROR");
    check(started.length > 0, "failing run: no sub-agent");
    const failed = events.filter(({ type }) => type === "SUBAGENT_ERROR");
    check(failed.length === started.length, "failing run: not all sub-agents failed");
    console.log(`subagents: failing run: ${events.length} events`);
    check(warnings.length === 0, `the client repaired the stream: ${warnings.join("; ")}`);
    return;
  }

  const first = await run("first run", "RUN_FINISHED");
  check(first.started.length > 1, `first run: ${first.started.length} sub-agents`);
  const asked = agent.pendingInterrupts;
  check(asked.length > 0, "first run: nothing is asked");
  for (const { id, subagentRunId, toolCallId } of asked) {
    check(first.started.includes(subagentRunId), `first run: nobody asks ${id}`);
    const made = agent.messages.find(({ toolCalls }) =>
      toolCalls?.some((call) => call.id === toolCallId),
    );
    check(made?.subagentRunId === subagentRunId, `first run: ${id} is about another's call`);
  }
  const suspended = first.events.filter(({ outcome }) => outcome?.type === "suspended");
  check(suspended.length === first.started.length, "first run: not all sub-agents wait");

  const approved = Object.fromEntries(
    asked.map(({ id }) => [id, { status: "resolved", payload: { approved: true } }]),
  );
  const resume = buildResumeArray(asked, approved);
  const second = await run("second run", "RUN_FINISHED", { resume });
  check(agent.pendingInterrupts.length === 0, "second run: something is asked again");
  check(
    first.started.every((id) => second.started.includes(id)),
    `second run: ${first.started} were to go on, not ${second.started}`,
  );
  const errors = second.events.filter(({ type }) => type === "SUBAGENT_ERROR");
  check(errors.length === 0, `second run: ${JSON.stringify(errors)}`);

  // Each call has one result, by the agent that made it.
  for (const { toolCalls, subagentRunId } of agent.messages) {
    for (const { id } of toolCalls ?? []) {
      const results = agent.messages.filter(({ toolCallId }) => toolCallId === id);
      check(results.length === 1, `${id} has ${results.length} results`);
      check(results[0].subagentRunId === subagentRunId, `${id} has another's result`);
    }
  }
  const answer = agent.messages.at(-1);
  check(answer.role === "assistant" && !answer.subagentRunId, "the last word is not the agent's");
  console.log(`subagents: ${first.events.length} and ${second.events.length} events, "${answer.content}"`);
  check(warnings.length === 0, `the client repaired the stream: ${warnings.join("; ")}`);
});
