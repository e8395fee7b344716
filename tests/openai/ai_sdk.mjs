// Sends the scripted server requests of the Vercel AI SDK: chats with its provider for compatible servers, and responses
// with that of OpenAI, which sends references to the items of stored ones.

import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { Output, generateText, isStepCount, streamText, tool } from "ai";
import { z } from "zod";
import * as expect from "./expect.mjs";
import { ERRORS, HELLO, LONG, PARALLEL, PARTS, PIXEL, ROUNDS, TRIP, equal, failure, same } from "./expect.mjs";

const [, , url] = process.argv;
const connection = { name: "concentric", baseURL: url, apiKey: "none" };
const compatible = createOpenAICompatible({ ...connection, includeUsage: true, supportsStructuredOutputs: true });
// The bodies of the requests for responses.
const sent = [];
const counted = (url, options) => (sent.push(JSON.parse(options.body)), fetch(url, options));
const openai = createOpenAI({ ...connection, fetch: counted });
const chats = { model: compatible("scripted"), maxRetries: 0 };
const responses = { model: openai.responses("scripted"), maxRetries: 0 };
let common;
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

const references = () => sent.at(-1).input.filter((item) => item.type === "item_reference").length;

/** Conversations, in which the client has only references to the answers. */
async function conversation() {
  for (const ask of [whole, streamed]) {
    const messages = [{ role: "user", content: "parallel" }];
    const { steps } = await ask(undefined, { ...loop, messages });
    messages.push(...steps.flatMap((step) => step.response.messages));
    messages.push({ role: "user", content: "recall" });
    const { text } = await ask(undefined, { messages });
    equal(text, `User:parallel|Assistant:Both.=Rome=Oslo|Assistant:${PARALLEL}|User:recall`);
    equal(references(), 2);
  }
}

async function approvals() {
  for (const approved of [true, false]) {
    const clerk = { ...common, model: openai.responses("clerk") };
    const messages = [{ role: "user", content: "Pay." }];
    const asked = await generateText({ ...clerk, messages });
    const { approvalId } = asked.content.find((part) => part.type === "tool-approval-request");
    messages.push(...asked.response.messages);
    const answer = { type: "tool-approval-response", approvalId, approved, providerExecuted: true };
    messages.push({ role: "tool", content: [answer] });
    const { text } = await generateText({ ...clerk, messages });
    equal(text.includes("paid 7"), approved);
    equal(references(), 2);
  }
}

common = chats;
await expect.run("@ai-sdk/openai-compatible", [text, tools, structured, images, errors, cancel]);
common = responses;
await expect.run("@ai-sdk/openai", [text, tools, structured, images, errors, cancel, conversation, approvals]);
