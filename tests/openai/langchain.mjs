// Sends the scripted server requests of LangChain for Node.

import { AIMessageChunk, HumanMessage, ToolMessage } from "@langchain/core/messages";
import { tool } from "@langchain/core/tools";
import { ChatOpenAI } from "@langchain/openai";
import { z } from "zod";
import * as expect from "./expect.mjs";
import { ERRORS, HELLO, LONG, PARALLEL, PARTS, PIXEL, ROUNDS, TRIP, equal, failure, same } from "./expect.mjs";

const [, , url] = process.argv;
const schema = z.object({ city: z.string(), people: z.number() });
const look = tool(({ city }) => city, {
  name: "look",
  description: "Looks.",
  schema: z.object({ city: z.string() }),
});

/** The checks of chat completions, or of responses. */
function checks(useResponsesApi) {
  const model = new ChatOpenAI({
    model: "scripted",
    apiKey: "none",
    maxRetries: 0,
    useResponsesApi,
    configuration: { baseURL: url },
  });
  const whole = (messages, runnable = model) => runnable.invoke(messages);
  /** The sum of the chunks. */
  const streamed = async (messages, runnable = model) => {
    let sum;
    for await (const chunk of await runnable.stream(messages)) sum = sum ? sum.concat(chunk) : chunk;
    return sum;
  };

  async function text() {
    for (const ask of [whole, streamed]) {
      const answer = await ask("hello");
      same([answer.text, answer.usage_metadata.total_tokens], [HELLO, 19]);
      equal((await ask("long")).text, LONG);
    }
  }

  async function tools() {
    const bound = model.bindTools([look]);
    for (const ask of [whole, streamed]) {
      for (const [prompt, rounds, text] of [["rounds", 2, ROUNDS], ["parallel", 1, PARALLEL]]) {
        const messages = [new HumanMessage(prompt)];
        for (let round = 0; round < rounds; round++) {
          const answer = await ask(messages, bound);
          messages.push(answer);
          for (const call of answer.tool_calls) messages.push(await look.invoke(call));
          equal(messages.at(-1) instanceof ToolMessage, true);
        }
        equal((await ask(messages, bound)).text, text);
      }
    }
  }

  async function structured() {
    same(await model.withStructuredOutput(schema, { name: "trip", strict: true }).invoke("parse"), TRIP);
  }

  async function images() {
    const content = [{ type: "text", text: "parts" }, { type: "image_url", image_url: { url: PIXEL } }];
    equal((await whole([new HumanMessage({ content })])).text, PARTS);
  }

  async function errors() {
    for (const [kind, status, code] of ERRORS) {
      for (const ask of [whole, streamed]) {
        const error = await failure(() => ask(`error ${kind}`));
        same([error.status, error.code], [status, code]);
      }
      // After the head.
      await failure(() => streamed(`late ${kind}`));
    }
  }

  async function cancel() {
    const dropped = async () => Number((await whole("dropped")).text);
    const before = await dropped();
    for await (const chunk of await model.stream("wait")) {
      equal(chunk instanceof AIMessageChunk, true);
      if (chunk.text) break;
    }
    await expect.droppedAfter(before, dropped);
  }

  return [text, tools, structured, images, errors, cancel];
}

await expect.run("@langchain/openai", [...checks(false), ...checks(true)]);
