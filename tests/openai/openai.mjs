// Sends the scripted server requests of OpenAI's client for Node.

import OpenAI from "openai";
import { zodResponseFormat, zodTextFormat } from "openai/helpers/zod";
import { z } from "zod";
import * as expect from "./expect.mjs";
import { ERRORS, HELLO, LONG, PARALLEL, PARTS, PIXEL, ROUNDS, TRIP, equal, failure, same } from "./expect.mjs";

const [, , url] = process.argv;
const client = new OpenAI({ baseURL: url, apiKey: "none", maxRetries: 0 });
const model = "scripted";
const look = {
  name: "look",
  description: "Looks.",
  parameters: { type: "object", properties: { city: { type: "string" } } },
};
const chatTools = [{ type: "function", function: look }];
const responseTools = [{ type: "function", strict: false, ...look }];
const schema = z.object({ city: z.string(), people: z.number() });
const user = (content) => [{ role: "user", content }];

// Each sends messages or items, whole and as a stream, whose end the client puts together.
const chat = (messages, fields = {}) => client.chat.completions.create({ model, messages, ...fields });
const chatStream = (messages, fields = {}) =>
  client.chat.completions.stream({ model, messages, ...fields }).finalChatCompletion();
const response = (input, fields = {}) => client.responses.create({ model, input, ...fields });
const responseStream = (input, fields = {}) => client.responses.stream({ model, input, ...fields }).finalResponse();

async function text() {
  for (const ask of [chat, chatStream]) {
    const { choices } = await ask(user("hello"));
    same([choices[0].message.content, choices[0].finish_reason], [HELLO, "stop"]);
    equal((await ask(user("refuse"))).choices[0].message.refusal, "I refuse.");
    equal((await ask(user("long"))).choices[0].message.content, LONG);
  }
  equal((await chat(user("length"))).choices[0].finish_reason, "length");
  for (const ask of [response, responseStream]) {
    const answer = await ask("hello");
    same([answer.output_text, answer.status, answer.usage.total_tokens], [HELLO, "completed", 19]);
    equal((await ask("refuse")).output[0].content[0].refusal, "I refuse.");
    equal((await ask("long")).output_text, LONG);
    equal((await ask("length")).incomplete_details.reason, "max_output_tokens");
  }
}

async function stream() {
  const fields = { stream: true, stream_options: { include_usage: true } };
  let content = "";
  let usage;
  for await (const chunk of await chat(user("hello"), fields)) {
    content += chunk.choices[0]?.delta.content ?? "";
    usage = chunk.usage;
  }
  same([content, usage.total_tokens], [HELLO, 19]);
  content = "";
  let number = 0;
  for await (const event of await response("hello", { stream: true })) {
    equal(event.sequence_number, number++);
    if (event.type === "response.output_text.delta") content += event.delta;
  }
  equal(content, HELLO);
}

async function tools() {
  for (const [prompt, rounds, text] of [["rounds", 2, ROUNDS], ["parallel", 1, PARALLEL]]) {
    for (const ask of [chat, chatStream]) {
      const messages = user(prompt);
      for (let round = 0; round < rounds; round++) {
        const { message, finish_reason } = (await ask(messages, { tools: chatTools })).choices[0];
        equal(finish_reason, "tool_calls");
        messages.push(message);
        for (const call of message.tool_calls) {
          const { city } = JSON.parse(call.function.arguments);
          messages.push({ role: "tool", tool_call_id: call.id, content: city });
        }
      }
      equal((await ask(messages, { tools: chatTools })).choices[0].message.content, text);
    }
    for (const ask of [response, responseStream]) {
      const items = user(prompt);
      for (let round = 0; round < rounds; round++) {
        const { output } = await ask(items, { tools: responseTools });
        items.push(...output);
        for (const call of output.filter((item) => item.type === "function_call")) {
          const { city } = JSON.parse(call.arguments);
          items.push({ type: "function_call_output", call_id: call.call_id, output: city });
        }
      }
      equal((await ask(items, { tools: responseTools })).output_text, text);
    }
  }
  // The client's own loop.
  const run = { name: "look", parameters: look.parameters, parse: JSON.parse, function: ({ city }) => city };
  const runner = client.chat.completions.runTools({
    model,
    messages: user("rounds"),
    tools: [{ type: "function", function: { ...run, description: "Looks." } }],
  });
  equal(await runner.finalContent(), ROUNDS);
}

async function structured() {
  const completion = await client.chat.completions.parse({
    model,
    messages: user("parse"),
    response_format: zodResponseFormat(schema, "trip"),
  });
  same(completion.choices[0].message.parsed, TRIP);
  const format = zodTextFormat(schema, "trip");
  const parsed = await client.responses.parse({ model, input: "parse", text: { format } });
  same(parsed.output_parsed, TRIP);
}

async function images() {
  const parts = [{ type: "text", text: "parts" }, { type: "image_url", image_url: { url: PIXEL } }];
  equal((await chat(user(parts))).choices[0].message.content, PARTS);
  const items = [{ type: "input_text", text: "parts" }, { type: "input_image", image_url: PIXEL, detail: "auto" }];
  equal((await response(user(items))).output_text, PARTS);
}

async function errors() {
  for (const [kind, status, code] of ERRORS) {
    for (const stream of [false, true]) {
      for (const ask of [() => chat(user(`error ${kind}`), { stream }), () => response(`error ${kind}`, { stream })]) {
        const error = await failure(ask);
        same([error instanceof OpenAI.APIError, error.status, error.code], [true, status, code]);
      }
    }
    // After the head.
    equal((await failure(() => chatStream(user(`late ${kind}`)))).code, code);
    await failure(() => responseStream(`late ${kind}`));
  }
  const { status, code } = await failure(() => client.models.retrieve("none"));
  same([status, code], [404, "model_not_found"]);
  const models = [];
  for await (const { id } of client.models.list()) models.push(id);
  same(models, ["clerk", "gpt-4o", "scripted"]);
}

async function stored() {
  const first = await response("tools", { tools: responseTools });
  same((await client.responses.retrieve(first.id)).output, first.output);
  const output = [{ type: "function_call_output", call_id: first.output.at(-1).call_id, output: "here" }];
  const fields = { tools: responseTools, previous_response_id: first.id };
  for (const ask of [response, responseStream]) {
    const second = await ask(output, fields);
    same([second.output_text, second.previous_response_id], ["look=here", first.id]);
    equal((await client.responses.retrieve(second.id)).output_text, "look=here");
  }
  await client.responses.delete(first.id);
  for (const ask of [() => client.responses.retrieve(first.id), () => response(output, fields)]) {
    equal((await failure(ask)).status, 404);
  }
}

async function approvals() {
  const clerk = { model: "clerk" };
  for (const approve of [true, false]) {
    const asked = await responseStream("Pay.", clerk);
    const request = asked.output.at(-1);
    same([request.type, request.name, request.arguments], ["mcp_approval_request", "pay", '{"sum":7}']);
    const items = [{ type: "mcp_approval_response", approval_request_id: request.id, approve }];
    const fields = { ...clerk, previous_response_id: asked.id };
    equal((await response(items, fields)).output_text.includes("paid 7"), approve);
    const { status, code } = await failure(() => response(items, fields));
    same([status, code], [409, "run_ended"]);
  }
}

async function retries() {
  let attempts = 0;
  const counted = (...request) => (attempts++, fetch(...request));
  const client = new OpenAI({ baseURL: url, apiKey: "none", maxRetries: 2, fetch: counted });
  for (const [prompt, status, expected] of [["error overloaded", 503, 3], ["effect", 424, 1]]) {
    attempts = 0;
    const error = await failure(() => client.chat.completions.create({ model, messages: user(prompt) }));
    same([error.status, attempts], [status, expected]);
  }
}

async function cancel() {
  const dropped = async () => Number((await response("dropped")).output_text);
  for (const ask of [(fields) => chat(user("wait"), fields), (fields) => response("wait", fields)]) {
    const before = await dropped();
    const stream = await ask({ stream: true });
    for await (const _ of stream) break;
    stream.controller.abort();
    await expect.droppedAfter(before, dropped);
  }
}

await expect.run("openai", [text, stream, tools, structured, images, errors, stored, approvals, retries, cancel]);
