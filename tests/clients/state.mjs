// Runs the unmodified `@ag-ui/client` against an agent that changes its state: node state.mjs URL
//
// The last event of the agent is a custom event with the whole state, which the client must have after
// it applied the snapshots and patches.

import { HttpAgent } from "@ag-ui/client";
import { check, script, within } from "./common.mjs";

await script("state", [], async (url) => {
  const agent = new HttpAgent({ url });
  agent.addMessage({ id: crypto.randomUUID(), role: "user", content: "hi" });
  const types = [];
  let expected;
  await within(
    60,
    "run",
    agent.runAgent(
      {},
      {
        onEvent: ({ event }) => {
          types.push(event.type);
          if (event.type === "CUSTOM") expected = event.value;
        },
      },
    ),
  );
  const sorted = (value) =>
    value && typeof value === "object" && !Array.isArray(value)
      ? Object.fromEntries(Object.keys(value).sort().map((key) => [key, sorted(value[key])]))
      : Array.isArray(value)
        ? value.map(sorted)
        : value;
  const [got, wanted] = [agent.state, expected].map((state) => JSON.stringify(sorted(state)));
  check(wanted !== undefined, "the agent sent no state to compare");
  check(got === wanted, `the client has ${got}, not ${wanted}`);
  const deltas = types.filter((type) => type === "STATE_DELTA").length;
  check(types.filter((type) => type === "STATE_SNAPSHOT").length === 1, `not one snapshot: ${types}`);
  check(deltas > 0, "no delta");
  console.log(`state: ${deltas} deltas`);
});
