// A Node origin whose pages are created at start, so that a response costs only what Node costs.
//
//   node server.js --listen 127.0.0.1:3000
//
// /10kb, /100kb   a page of 10 or 100 KiB, with a Content-Length, sent with one response.end
// /up             for health checks
"use strict";

const http = require("node:http");

// The length is not a power of two, so that a lost or repeated block shows.
const LINE = "<p>A line of a page, as an application would have put it together from its data.</p>\n";

function page(size) {
  return Buffer.from(LINE.repeat(Math.floor(size / LINE.length) + 1).slice(0, size));
}

const PAGES = new Map([
  ["/10kb", page(10 << 10)],
  ["/100kb", page(100 << 10)],
  ["/up", page(LINE.length)],
]);
const NO_PAGE = Buffer.from("no such path\n");

const server = http.createServer((request, response) => {
  const found = PAGES.get(request.url);
  const body = found ?? NO_PAGE;
  const fields = { "Content-Type": "text/html; charset=utf-8", "Content-Length": body.length };
  response.writeHead(found ? 200 : 404, fields);
  response.end(body);
});
const listen = process.argv[process.argv.indexOf("--listen") + 1] ?? "127.0.0.1:3000";
const colon = listen.lastIndexOf(":");
server.listen({ port: Number(listen.slice(colon + 1)), host: listen.slice(0, colon), backlog: 4096 });
process.on("SIGTERM", () => process.exit(0));
