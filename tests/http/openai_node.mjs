// Structured outputs and tools by OpenAI's client for Node; prints what came as one JSON object.
// Arguments: the folder with `node_modules`, the server's address, the model, other fields as JSON.
import { createRequire } from "node:module";

const [folder, baseURL, model, more] = process.argv.slice(2);
const require = createRequire(`${folder}/`);
const { OpenAI } = require("openai");
const { zodFunction, zodResponseFormat } = require("openai/helpers/zod");
const { z } = require("zod");

const client = new OpenAI({ apiKey: "none", baseURL, maxRetries: 0 });
const Person = z.object({
  name: z.string().max(8),
  age: z.number().int().min(0).max(120),
  cities: z.array(z.string().max(8)).max(2),
});
const ask = {
  model,
  messages: [{ role: "user", content: "Anne, 41, lives in Rome." }],
  max_tokens: 1200,
  seed: 1,
  ...JSON.parse(more),
};

async function both(body) {
  const whole = await client.chat.completions.parse(body);
  const stream = client.chat.completions.stream(body);
  let deltas = 0;
  for await (const chunk of stream) deltas += chunk.choices.length;
  const streamed = await stream.finalChatCompletion();
  return { whole: whole.choices[0], streamed: streamed.choices[0], deltas };
}

async function refused(body) {
  try {
    await client.chat.completions.create(body);
  } catch (error) {
    return { status: error.status, code: error.code, param: error.param };
  }
}

const found = {};
found.form = await both({ ...ask, response_format: zodResponseFormat(Person, "person") });
found.parsed = Person.safeParse(found.form.whole.message.parsed).success;
const format = { type: "json_schema", json_schema: { name: "n", schema: { not: {} } } };
found.refused = await refused({ ...ask, response_format: format });
const weather = z.object({ city: z.string().max(8) });
const tool = zodFunction({ name: "weather", parameters: weather });
found.call = await both({
  ...ask,
  tools: [tool],
  tool_choice: { type: "function", function: { name: "weather" } },
  parallel_tool_calls: false,
});
console.log(JSON.stringify(found));
