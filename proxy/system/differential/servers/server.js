// Records every request it receives: client, added field, method, target and body, each in hex.
"use strict";

const http = require("node:http");

const hex = (value) => Buffer.from(value ?? "", "latin1").toString("hex");

function take(request, response) {
  const pieces = [];
  request.on("data", (piece) => pieces.push(piece));
  // A request that is cut has no end.
  request.on("end", () => {
    const { headers, method, url } = request;
    const words = [headers["x-forwarded-for"], headers["x-differential"], method, url].map(hex);
    process.stdout.write(`request=${words.join(" ")} ${Buffer.concat(pieces).toString("hex")}=\n`);
    response.end("taken\n");
  });
}

const [host, port] = process.argv[2].split(":");
http.createServer(take).listen(Number(port), host);
