// Run scenarios with openai-node: one a line in, one a line out. The twin of runner.py, which says how.
//
//     node runner.mjs FOLDER < lines        FOLDER has openai in its node_modules
import { createRequire } from "node:module";
import { createInterface } from "node:readline";

const { default: OpenAI } = createRequire(`${process.argv[2]}/`)("openai");
const NO_KEY = "sk-none"; // neither the engines nor this gateway ask for one
const DEFAULT_TIMEOUT_S = 20;

// Turn a result into plain JSON data: a page as its list, everything else as it came.
function plain(value) {
  if (value !== null && typeof value === "object" && typeof value.getPaginatedItems === "function")
    return { object: value.object, data: value.data };
  return value === undefined ? null : JSON.parse(JSON.stringify(value));
}

// Tell an exception as the caller sees it: its class, and the parts of the error body it carries.
function failure(error) {
  const { status: status_code, code, param, type, error: body, requestID: request_id } = error;
  const told = { status_code, code, param, type, body, request_id };
  return { error: error.constructor.name, ...JSON.parse(JSON.stringify(told)) };
}

// Replace each {"$id_of": n} by the id of step n's result.
function filled(value, done) {
  if (Array.isArray(value)) return value.map((item) => filled(item, done));
  if (value === null || typeof value !== "object") return value;
  if ("$id_of" in value) return done[value["$id_of"]].result.id;
  return Object.fromEntries(Object.entries(value).map(([key, item]) => [key, filled(item, done)]));
}

// Find client.a.b.c, bound to client.a.b.
function method(client, path) {
  const names = path.split(".");
  const owner = names.slice(0, -1).reduce((object, name) => object[name], client);
  return owner[names.at(-1)].bind(owner);
}

async function step(client, words, done) {
  const { timeout_s = DEFAULT_TIMEOUT_S, max_retries = 0 } = words.options ?? {};
  const options = { timeout: timeout_s * 1000, maxRetries: max_retries };
  let body = { ...filled(words.body ?? {}, done), ...(words.extra ?? {}) };
  const stream = body.stream === true;
  if (words.call === "post") body = { body }; // a path that has no method of its own
  const args = [...filled(words.args ?? [], done), ...(Object.keys(body).length ? [body] : [])];
  if (words.call === "post") Object.assign(body, options);
  else args.push(options);
  const chunks = [];
  try {
    const result = await method(client, words.call)(...args);
    const page = result?.response?.headers.get("x-request-id"); // pages know their response instead
    if (!stream) return { result: plain(result), request_id: result?._request_id ?? page ?? null };
    for await (const chunk of result) {
      chunks.push(plain(chunk));
      if (chunks.length === words.take) {
        result.controller.abort();
        return { chunks, left: true };
      }
    }
  } catch (error) {
    return stream ? { chunks, ...failure(error) } : failure(error);
  }
  return { chunks, left: false };
}

const clients = new Map();
for await (const line of createInterface({ input: process.stdin })) {
  const { base_url: baseURL, steps } = JSON.parse(line);
  if (!clients.has(baseURL)) clients.set(baseURL, new OpenAI({ baseURL, apiKey: NO_KEY }));
  const done = [];
  for (const words of steps) done.push(await step(clients.get(baseURL), words, done));
  process.stdout.write(JSON.stringify(done) + "\n");
}
