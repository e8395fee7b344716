// Sends the scripted server requests of the Vercel AI SDK with its provider for compatible servers.

import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { Output, generateText, isStepCount, streamText, tool } from "ai";
import { z } from "zod";
import * as expect from "./expect.mjs";
import { ERRORS, HELLO, LONG, PARALLEL, PARTS, PIXEL, ROUNDS, TRIP, equal, failure, same } from "./expect.mjs";

const [, , url] = process.argv;
const provider = createOpenAICompatible({
  name: "concentric",
  baseURL: url,
  apiKey: "none",
  includeUsage: true,
  supportsStructuredOutputs: true,
});
const common = { model: provider("scripted"), maxRetries: 0 };
const look = tool({
  description: "Looks.",
  inputSchema: z.object({ city: z.string() }),
  execute: async ({ city }) => city,
});
const loop = { tools: { look }, stopWhen: isStepCount(5) };

const whole = (prompt, fields = {}) => generateText({ ...common, prompt, ...fields });

/** The result of a stream that has ended. */
async function streamed(prompt, fields = {}) {
  let failed;
  const onError = ({ error }) => void (failed = error);
  const result = streamText({ ...common, prompt, onError, ...fields });
  let text = "";
  for await (const delta of result.textStream) text += delta;
  if (failed) throw failed;
  const steps = await result.steps;
  equal(text, steps.map((step) => step.text).join(""));
  return { text: await result.text, finishReason: await result.finishReason, usage: await result.usage, steps };
}

async function text() {
  for (const ask of [whole, streamed]) {
    const { text, finishReason, usage } = await ask("hello");
    same([text, finishReason, usage.totalTokens], [HELLO, "stop", 19]);
    equal((await ask("long")).text, LONG);
    equal((await ask("length")).finishReason, "length");
  }
}

async function tools() {
  for (const ask of [whole, streamed]) {
    for (const [prompt, calls, text] of [["rounds", [1, 1, 0], ROUNDS], ["parallel", [2, 0], PARALLEL]]) {
      const result = await ask(prompt, loop);
      same([result.text, result.steps.map((step) => step.toolCalls.length)], [text, calls]);
    }
  }
}

async function structured() {
  const schema = z.object({ city: z.string(), people: z.number() });
  same((await whole("parse", { output: Output.object({ schema }) })).output, TRIP);
}

async function images() {
  const content = [{ type: "text", text: "parts" }, { type: "file", data: PIXEL, mediaType: "image/png" }];
  const { text } = await generateText({ ...common, messages: [{ role: "user", content }] });
  equal(text, PARTS);
}

async function errors() {
  for (const [kind, status, code] of ERRORS) {
    for (const ask of [whole, streamed]) {
      const error = await failure(() => ask(`error ${kind}`));
      same([error.statusCode, error.data.error.code], [status, code]);
    }
    // After the head.
    await failure(() => streamed(`late ${kind}`));
  }
}

async function cancel() {
  const dropped = async () => Number((await whole("dropped")).text);
  const before = await dropped();
  const controller = new AbortController();
  const result = streamText({ ...common, prompt: "wait", abortSignal: controller.signal, onError: () => {} });
  for await (const _ of result.textStream) controller.abort();
  await expect.droppedAfter(before, dropped);
}

await expect.run("@ai-sdk/openai-compatible", [text, tools, structured, images, errors, cancel]);
