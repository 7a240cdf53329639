// OpenAI's client for Node.
import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";
import assert from "node:assert";

const { JUDGE_HOME, JUDGE_URL, JUDGE_MODEL, JUDGE_EMBEDDER } = process.env;
const require = createRequire(pathToFileURL(`${JUDGE_HOME}/package.json`));
const OpenAI = require("openai").default ?? require("openai");
const { zodResponseFormat } = require("openai/helpers/zod");
const { z } = require("zod");

const client = new OpenAI({ baseURL: `${JUDGE_URL}/v1`, apiKey: "none", maxRetries: 0 });
const messages = [{ role: "user", content: "Anne, 41, lives in Rome." }];
const quiet = { chat_template_kwargs: { enable_thinking: false } };

const checks = {
  async chat() {
    const answer = await client.chat.completions.create({ model: JUDGE_MODEL, messages, max_tokens: 8 });
    assert(answer.usage.completion_tokens > 0);
  },
  async "chat streamed"() {
    const stream = await client.chat.completions.create({
      model: JUDGE_MODEL, messages, max_tokens: 8, stream: true,
    });
    let ends = 0;
    for await (const chunk of stream) ends += chunk.choices[0]?.finish_reason ? 1 : 0;
    assert.strictEqual(ends, 1);
  },
  async parsed() {
    const Person = z.object({ name: z.string().max(8), age: z.number().int().min(0).max(120) });
    const answer = await client.chat.completions.parse({
      model: JUDGE_MODEL, messages, max_tokens: 900,
      response_format: zodResponseFormat(Person, "person"), ...quiet,
    });
    assert(Person.safeParse(answer.choices[0].message.parsed).success);
  },
  async embeddings() {
    const answer = await client.embeddings.create({ model: JUDGE_EMBEDDER, input: ["one", "two"] });
    assert.strictEqual(answer.data.length, 2);
  },
  async "responses streamed"() {
    const stream = await client.responses.create({
      model: JUDGE_MODEL, input: "Hi", max_output_tokens: 8, stream: true,
    });
    const kinds = [];
    for await (const event of stream) kinds.push(event.type);
    assert.strictEqual(kinds[0], "response.created");
  },
  async "responses kept"() {
    const made = await client.responses.create({ model: JUDGE_MODEL, input: "Hi", max_output_tokens: 8 });
    assert.strictEqual((await client.responses.retrieve(made.id)).id, made.id);
    await client.responses.delete(made.id);
  },
};
for (const [check, run] of Object.entries(checks)) {
  const line = { check };
  try {
    await run();
  } catch (error) {
    line.error = `${error.name}: ${error.message}`.slice(0, 300);
  }
  console.log(JSON.stringify(line));
}
