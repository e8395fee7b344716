// What the scripts of the clients share.

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";

export const { strictEqual: equal, deepStrictEqual: same } = assert;

// The answers of the scripted model.
export const HELLO = "Hello, world!";
export const LONG = "\u00e9\n".repeat(1 << 18) + "x".repeat(1 << 18);
export const PIXEL = "data:image/png;base64,iVBORw0KGgo=";
export const PARTS = 'text;image Some("image/png")';
export const PARALLEL = "look=Rome;look=Oslo";
export const ROUNDS = "look=Oslo";
export const TRIP = { city: "Paris", people: 2 };

// Kinds of failures of the scripted model, with the status and the code of the response.
export const ERRORS = [
  ["authentication", 502, "upstream_authentication"],
  ["invalid_request", 400, "invalid_request"],
  ["context_window", 400, "context_length_exceeded"],
  ["rate_limited", 429, "rate_limit_exceeded"],
  ["overloaded", 503, "overloaded"],
  ["timeout", 504, "timeout"],
  ["conflict", 409, "conflict"],
  ["server", 502, "upstream_server"],
  ["other", 500, "other"],
];

/** The error of a call that must fail. */
export async function failure(call) {
  try {
    await call();
  } catch (error) {
    return error;
  }
  throw new Error("no error");
}

/** Waits until the model has lost one client more than `before`, by the answers of `dropped`. */
export async function droppedAfter(before, dropped) {
  for (let n = 0; n < 100 && (await dropped()) === before; n++) {
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
  equal(await dropped(), before + 1);
}

/** Runs the checks in turn, and prints a line. */
export async function run(name, checks) {
  for (const check of checks) {
    try {
      await check();
    } catch (error) {
      console.error(`${name}: ${check.name}`);
      throw error;
    }
  }
  const manifest = new URL(`node_modules/${name}/package.json`, import.meta.url);
  const { version } = JSON.parse(readFileSync(manifest, "utf8"));
  console.log(`${name} ${version}: all answers are as expected`);
}
