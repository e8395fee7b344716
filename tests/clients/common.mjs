// What the two client scripts share: the prompts, the checks and the exit code.

/** Answered with text alone. */
export const HELLO = "hello";
/** Makes the agent call a tool. */
export const FOLDER = "which files are here?";

/** Makes the agent call a tool that is asked about. */
export const REFUND = "please refund order 7";

/** A violation: a check that failed, as opposed to a bug in these scripts. */
export class Violation extends Error {}

export function check(condition, message) {
  if (!condition) throw new Violation(message);
}

/** Fails instead of waiting for ever for a stream that does not end. */
export function within(seconds, what, promise) {
  let timer;
  const late = new Promise((_, reject) => {
    timer = setTimeout(
      () => reject(new Violation(`${what}: no end within ${seconds} s`)),
      seconds * 1000,
    );
  });
  return Promise.race([promise, late]).finally(() => clearTimeout(timer));
}

/** Everything the client warns about is something that it had to drop or repair. */
export function watchWarnings() {
  const warnings = [];
  console.warn = (...args) => warnings.push(args.map(String).join(" "));
  return warnings;
}

/** The events in a body of server-sent events, each in one `data:` line, after its id. */
export function readEvents(what, body) {
  check(!body.includes("\r"), `${what}: a carriage return in the stream`);
  check(body === "" || body.endsWith("\n\n"), `${what}: the last frame is cut off`);
  const frames = body.split("\n\n").filter((frame) => frame !== "" && !frame.startsWith(":"));
  return frames.map((frame) => {
    const data = /^(?:id: [0-9]+-[0-9a-f]+\n)?data: ([^\n]*)$/.exec(frame)?.[1];
    check(data !== undefined, `${what}: not a frame: ${frame}`);
    return JSON.parse(data);
  });
}

/** Checks of the stream itself, the same for every client. */
export function checkStream(what, events, terminal) {
  const types = events.map((event) => event.type);
  check(types.length > 0, `${what}: no event at all`);
  check(
    types.at(-1) === terminal,
    `${what}: the last event is ${types.at(-1)}, not ${terminal} (${types.join(" ")})`,
  );
  const ends = types.filter((type) => type === "RUN_FINISHED" || type === "RUN_ERROR");
  check(ends.length === 1, `${what}: ${ends.length} terminal events (${types.join(" ")})`);
}

/** Checks that some tool was called, and that its result came. */
export function checkToolRound(what, events) {
  const calls = events.filter(({ type }) => type === "TOOL_CALL_START");
  check(calls.length > 0, `${what}: no tool call`);
  const results = new Set(
    events.filter(({ type }) => type === "TOOL_CALL_RESULT").map((event) => event.toolCallId),
  );
  for (const { toolCallId, toolCallName } of calls) {
    check(results.has(toolCallId), `${what}: no result for the call of ${toolCallName}`);
  }
}

/** The value of a flag that ends in `=`. */
export function option(flags, name) {
  return [...flags].find((flag) => flag.startsWith(name))?.slice(name.length);
}

/** Runs `main` with the URL and the flags of the command line. */
export async function script(name, flags, main) {
  const args = process.argv.slice(2);
  const urls = args.filter((arg) => !arg.startsWith("--"));
  const known = (arg) => flags.some((flag) => (flag.endsWith("=") ? arg.startsWith(flag) : arg === flag));
  const unknown = args.filter((arg) => arg.startsWith("--") && !known(arg));
  if (urls.length !== 1 || unknown.length > 0) {
    console.error(`usage: node ${name}.mjs ${flags.map((flag) => `[${flag}] `).join("")}URL`);
    process.exit(2);
  }
  try {
    await main(urls[0], new Set(args));
  } catch (error) {
    console.error(`${name}: ${error instanceof Violation ? error.message : error.stack}`);
    process.exit(1);
  }
  // A client may hold a connection open; the work is done.
  process.exit(0);
}
