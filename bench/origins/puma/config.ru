# frozen_string_literal: true

# A Rack origin for tests and benchmarks, on Puma or Falcon:
#   puma -C - -e production -t 4:4 -b tcp://127.0.0.1:9292 config.ru
#   falcon serve --count 1 --bind http://127.0.0.1:9292 --config config.ru
# /            a line of text
# /bytes?n=    n bytes, always the same
# /delay?ms=   responds after ms milliseconds
# /upload      the SHA-256 of the request body, in hex
# /stream?n=   n lines, each sent separately
# /gated?id=   server-sent events: one at once, the last one after a request for /release?id=
# /release?id= lets /gated continue
# /up          the health check, as in Rails

require "digest"

BYTES_MAX = 1 << 26
DELAY_MS_MAX = 60_000
LINES_MAX = 1 << 20
GATE_WAIT_S = 30
NAME = ENV.fetch("ORIGIN_NAME", "puma")
GATES = {}
PATTERN = (0..255).map { |i| ((i * 167) + 13) & 0xff }.pack("C*").freeze
TEXT = { "content-type" => "text/plain" }.freeze

def number(env, name, max)
  found = env["QUERY_STRING"].to_s[/(?:\A|&)#{name}=(\d{1,12})(?:&|\z)/, 1]
  [found.to_i, max].min
end

def text(status, body)
  [status, TEXT.merge("content-length" => body.bytesize.to_s), [body]]
end

def bytes(count)
  body = PATTERN * (count / PATTERN.bytesize) + PATTERN.byteslice(0, count % PATTERN.bytesize)
  headers = { "content-type" => "application/octet-stream", "content-length" => count.to_s }
  [200, headers, [body]]
end

def upload(input)
  digest = Digest::SHA256.new
  while (piece = input&.read(65_536))
    digest << piece
  end
  text(200, "#{digest.hexdigest}\n")
end

def stream(count)
  [200, TEXT, Enumerator.new { |out| count.times { |i| out << "line #{i}\n" } }]
end

# A client that gets the first event before the release proves that no proxy buffered it.
def gated(id)
  gate = GATES[id] = Queue.new
  events = Enumerator.new do |out|
    out << "data: first\n\n"
    opened = (GATE_WAIT_S * 100).times.any? { gate.empty? ? sleep(0.01) && false : true }
    out << "data: last\n\n" if opened
    GATES.delete(id)
  end
  [200, { "content-type" => "text/event-stream" }, events]
end

def release(id)
  gate = GATES[id] or return text(404, "no such gate\n")
  gate << true
  text(200, "released\n")
end

app = lambda do |env|
  case env["PATH_INFO"]
  when "/", "/up", "/health", "/healthz" then text(200, "hello from #{NAME}\n")
  when "/bytes" then bytes(number(env, "n", BYTES_MAX))
  when "/delay"
    sleep(number(env, "ms", DELAY_MS_MAX) / 1000.0)
    text(200, "waited\n")
  when "/stream" then stream(number(env, "n", LINES_MAX))
  when "/gated" then gated(env["QUERY_STRING"])
  when "/release" then release(env["QUERY_STRING"])
  when "/upload" then upload(env["rack.input"])
  else text(404, "no such path\n")
  end
end

run app
