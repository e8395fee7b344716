// Runs the unmodified `@ag-ui/client` through questions and answers: node approval.mjs [--prompt=TEXT] URL
//
// The prompt has the agent call a tool that is asked about; the default is what the `approval`
// example understands. The call is approved, denied and given up, each in a conversation of its own;
// then an answer is given twice, and one to a call that was changed in between, and neither runs
// anything. The client checks every event against the protocol's schema and its order by itself.

import { HttpAgent, buildResumeArray } from "@ag-ui/client";
import { REFUND, check, checkStream, option, script, watchWarnings, within } from "./common.mjs";

await script("approval", ["--prompt="], async (url, flags) => {
  const warnings = watchWarnings();
  const prompt = option(flags, "--prompt=") ?? REFUND;

  const run = async (what, agent, parameters = {}) => {
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
    return { events, refused };
  };

  /** A conversation in which the agent has asked. */
  const asked = async (what) => {
    const agent = new HttpAgent({ url });
    agent.addMessage({ id: crypto.randomUUID(), role: "user", content: prompt });
    const { events, refused } = await run(what, agent);
    check(refused.length === 0, `${what}: the client refused it: ${refused.join("; ")}`);
    checkStream(what, events, "RUN_FINISHED");
    check(events.at(-1).outcome?.type === "interrupt", `${what}: nothing is asked`);
    check(agent.pendingInterrupts.length > 0, `${what}: the client knows of no question`);
    const calls = events.filter(({ type }) => type === "TOOL_CALL_START");
    const answered = events.filter(({ type }) => type === "TOOL_CALL_RESULT");
    for (const { id, reason, message, toolCallId, expiresAt } of agent.pendingInterrupts) {
      check(reason === "tool_call" && message, `${what}: ${id} is no question about a call`);
      check(
        calls.some((call) => call.toolCallId === toolCallId),
        `${what}: ${id} is about a call that was not shown: ${toolCallId}`,
      );
      check(
        answered.every((result) => result.toolCallId !== toolCallId),
        `${what}: the call of ${id} has a result`,
      );
      check(
        expiresAt === undefined || Date.parse(expiresAt) > Date.now(),
        `${what}: ${id} expires at ${expiresAt}`,
      );
    }
    return agent;
  };

  /** Answers all questions of `agent` alike. */
  const answers = (agent, status, payload) =>
    buildResumeArray(
      agent.pendingInterrupts,
      Object.fromEntries(
        agent.pendingInterrupts.map(({ id, metadata }) => [
          id,
          {
            status,
            ...(payload !== undefined && { payload }),
            ...(metadata?.token !== undefined && { metadata: { token: metadata.token } }),
          },
        ]),
      ),
    );

  /** What came of the calls that `agent` was asked about. */
  const outcomes = (what, agent, before, events) =>
    before.map(({ toolCallId }) => {
      const results = events.filter(
        (event) => event.type === "TOOL_CALL_RESULT" && event.toolCallId === toolCallId,
      );
      check(results.length === 1, `${what}: ${results.length} results of ${toolCallId}`);
      check(
        agent.messages.some((m) => m.role === "tool" && m.toolCallId === toolCallId),
        `${what}: no tool message in the conversation`,
      );
      return results[0].metadata?.status ?? "done";
    });

  for (const [what, status, payload, expected] of [
    ["approved", "resolved", { approved: true }, "done"],
    ["denied", "resolved", { approved: false, reason: "too much" }, "denied"],
    ["given up", "cancelled", undefined, "cancelled"],
  ]) {
    const agent = await asked(what);
    const early = await run(what, agent.clone());
    check(early.refused.length > 0, `${what}: the client asks for no answer`);
    const before = agent.pendingInterrupts;
    const { events, refused } = await run(what, agent, { resume: answers(agent, status, payload) });
    check(refused.length === 0, `${what}: the client refused it: ${refused.join("; ")}`);
    checkStream(what, events, "RUN_FINISHED");
    check(agent.pendingInterrupts.length === 0, `${what}: it is asked again`);
    const found = outcomes(what, agent, before, events);
    check(
      found.every((outcome) => outcome === expected),
      `${what}: the calls are ${found.join(", ")}`,
    );
    const last = agent.messages.at(-1);
    check(last.role === "assistant" && last.content?.trim(), `${what}: the agent says nothing of it`);
    console.log(`approval: ${what}: ${events.length} events, "${last.content}"`);
  }

  /** Whether a run was refused, or has run nothing. */
  const nothingRan = (what, agent, before, events) => {
    const end = events.at(-1);
    if (end?.type === "RUN_ERROR") return `RUN_ERROR ${end.code}`;
    checkStream(what, events, "RUN_FINISHED");
    const found = outcomes(what, agent, before, events);
    check(
      // What was decided about before may have been run then.
      found.every((outcome) => outcome === "denied" || outcome === "unknown"),
      `${what}: the calls are ${found.join(", ")}`,
    );
    const told = events.find(({ type, name }) => type === "CUSTOM" && name === "approval-invalid");
    check(told, `${what}: nobody is told that the approval is not valid`);
    return `${told.name} ${told.value.code}`;
  };

  const agent = await asked("twice");
  const again = agent.clone();
  const resume = answers(agent, "resolved", { approved: true });
  const before = agent.pendingInterrupts;
  await run("twice", agent, { resume });
  const twice = await run("twice", again, { resume });
  console.log(`approval: twice: ${nothingRan("twice", again, before, twice.events)}`);

  const changed = await asked("changed");
  if (changed.pendingInterrupts.every(({ metadata }) => metadata?.token !== undefined)) {
    const before = changed.pendingInterrupts;
    const resume = answers(changed, "resolved", { approved: true });
    const calls = changed.messages.flatMap(({ toolCalls }) => toolCalls ?? []);
    for (const { toolCallId } of before) {
      calls.find(({ id }) => id === toolCallId).function.arguments = '{"changed":true}';
    }
    const { events } = await run("changed", changed, { resume });
    console.log(`approval: changed: ${nothingRan("changed", changed, before, events)}`);
  }
  check(warnings.length === 0, `the client repaired the stream: ${warnings.join("; ")}`);
});
