// Pipes recorded streams through the stages that the reference client puts before an application:
// node verify.mjs FILE...
//
// A file is a recording of a response's body, byte for byte; what is not well-formed SSE, does not
// match the schema, would be dropped with a warning, breaks the order of events or stops without a
// terminal event is a violation. Two kinds of fixtures are read too: `.jsonl` has one event a line,
// each checked against the schema by itself, and `.json` is a table of streams, where those with an
// `error` must be refused.

import { readFileSync } from "node:fs";
import {
  enforceEvents,
  runHttpRequest,
  transformChunks,
  transformHttpEventStream,
  verifyEvents,
} from "@ag-ui/client";
import { check, watchWarnings, within } from "./common.mjs";

const warnings = watchWarnings();

/** The events of a body that pass `stages`; an error if one does not. */
async function events(body, ...stages) {
  const headers = { "content-type": "text/event-stream" };
  const response = runHttpRequest(async () => new Response(body, { headers }));
  const source = stages.reduce((source, stage) => stage()(source), transformHttpEventStream(response));
  const seen = [];
  warnings.length = 0;
  await within(
    60,
    "stream",
    new Promise((complete, error) => {
      source.subscribe({ next: (event) => seen.push(event), error, complete });
    }),
  );
  check(warnings.length === 0, warnings.join("; "));
  return seen;
}

async function stream(body) {
  const seen = await events(body, enforceEvents, transformChunks, verifyEvents);
  const last = seen.at(-1)?.type;
  check(
    last === "RUN_FINISHED" || last === "RUN_ERROR",
    `the stream stops after ${last ?? "nothing"}, without a terminal event`,
  );
  return seen.length;
}

const sse = (events) => events.map((event) => `data: ${JSON.stringify(event)}\n\n`).join("");
const lines = (text) => text.split("\n").filter((line) => line !== "");

async function file(path) {
  const body = readFileSync(path);
  if (path.endsWith(".jsonl")) {
    const all = lines(body.toString()).map((line) => JSON.parse(line));
    for (const event of all) await events(sse([event]), enforceEvents);
    return `${all.length} events`;
  }
  if (!path.endsWith(".json")) return `${await stream(body)} events`;
  const table = JSON.parse(body);
  for (const { name, error, events } of table) {
    const refusal = await stream(sse(events)).then(
      () => undefined,
      (error) => error,
    );
    check(error !== undefined || refusal === undefined, `${name}: refused: ${refusal?.message}`);
    check(error === undefined || refusal !== undefined, `${name}: not refused`);
  }
  return `${table.length} streams`;
}

const paths = process.argv.slice(2);
if (paths.length === 0) {
  console.error("usage: node verify.mjs FILE...");
  process.exit(2);
}
let violations = 0;
for (const path of paths) {
  try {
    console.log(`verify: ${path}: ${await file(path)}`);
  } catch (error) {
    violations += 1;
    console.error(`verify: ${path}: ${error.message}`);
  }
}
process.exit(violations === 0 ? 0 : 1);
