// A Node origin for tests and benchmarks: node server.js --listen 127.0.0.1:3000
//
// /            a line of text
// /bytes?n=    n bytes, always the same
// /delay?ms=   responds after ms milliseconds
// /upload      the SHA-256 of the request body, in hex
// /stream?n=   n lines, each written separately
// /gated?id=   server-sent events: one at once, the last one after a request for /release?id=
// /release?id= lets /gated continue
// /up          for health checks
"use strict";

const { createHash } = require("node:crypto");
const http = require("node:http");

const BYTES_MAX = 2 ** 34;
const LINES_MAX = 2 ** 20;
const DELAY_MS_MAX = 60_000;
const GATE_WAIT_MS = 30_000;
const BLOCK = 65_536;
// Not a power of two, so that a lost or repeated block shows.
const PERIOD = 65_521;
const PATTERN = Buffer.alloc(PERIOD + BLOCK);
for (let i = 0; i < PATTERN.length; i++) {
  PATTERN[i] = (((i % PERIOD) * 167) >> 3) ^ (i % PERIOD);
}
const gates = new Map();

function text(response, status, body) {
  response.writeHead(status, { "Content-Type": "text/plain", "Content-Length": Buffer.byteLength(body) });
  response.end(body);
}

// A query parameter, 0 if it is missing or malformed.
function number(query, name, max) {
  const value = query.get(name) ?? "";
  return /^\d{1,12}$/.test(value) ? Math.min(Number(value), max) : 0;
}

// Waits until the response can take more, or has ended.
function room(response) {
  return new Promise((resolve) => {
    response.once("drain", resolve);
    response.once("close", resolve);
  });
}

async function bytes(response, count) {
  response.writeHead(200, { "Content-Type": "application/octet-stream", "Content-Length": count });
  for (let at = 0; at < count && !response.destroyed; at += BLOCK) {
    const from = at % PERIOD;
    const more = response.write(PATTERN.subarray(from, from + Math.min(BLOCK, count - at)));
    if (!more) await room(response);
  }
  response.end();
}

async function stream(response, count) {
  response.writeHead(200, { "Content-Type": "text/plain" });
  for (let i = 0; i < count && !response.destroyed; i++) {
    const more = response.write(`line ${i}\n`);
    // In the next turn of the event loop, because otherwise Node would send several lines at once.
    await (more ? new Promise(setImmediate) : room(response));
  }
  response.end();
}

async function upload(request, response) {
  const hash = createHash("sha256");
  for await (const piece of request) hash.update(piece);
  text(response, 200, `${hash.digest("hex")}\n`);
}

// A client that gets the first event before the release proves that no proxy buffered it.
function gated(response, id) {
  response.writeHead(200, { "Content-Type": "text/event-stream" });
  response.write("data: first\n\n");
  const end = (event) => {
    clearTimeout(timer);
    gates.delete(id);
    response.end(event);
  };
  const timer = setTimeout(() => end(""), GATE_WAIT_MS);
  gates.set(id, () => end("data: last\n\n"));
  response.on("close", () => clearTimeout(timer));
}

function release(response, id) {
  const gate = gates.get(id);
  if (!gate) return text(response, 404, "no such gate\n");
  gate();
  text(response, 200, "released\n");
}

async function answer(request, response) {
  const url = new URL(request.url, "http://origin");
  const query = url.searchParams;
  switch (url.pathname) {
    case "/":
    case "/up":
    case "/health":
    case "/healthz":
      return text(response, 200, "hello from node\n");
    case "/bytes":
      return bytes(response, number(query, "n", BYTES_MAX));
    case "/delay":
      await new Promise((resolve) => setTimeout(resolve, number(query, "ms", DELAY_MS_MAX)));
      return text(response, 200, "waited\n");
    case "/upload":
      return upload(request, response);
    case "/stream":
      return stream(response, number(query, "n", LINES_MAX));
    case "/gated":
      return gated(response, query.get("id"));
    case "/release":
      return release(response, query.get("id"));
    default:
      return text(response, 404, "no such path\n");
  }
}

const listen = process.argv[process.argv.indexOf("--listen") + 1] ?? "127.0.0.1:3000";
const colon = listen.lastIndexOf(":");
const host = listen.slice(0, colon).replace(/^\[|\]$/g, "");
// If a client goes away in the middle of its upload, the request's stream fails; there is nothing to respond to then.
const server = http.createServer((request, response) => answer(request, response).catch(() => response.destroy()));
// Node's own default, written here because the example's pool depends on it.
server.keepAliveTimeout = 5_000;
server.listen({ port: Number(listen.slice(colon + 1)), host, backlog: 4096 });
process.on("SIGTERM", () => process.exit(0));
