# frozen_string_literal: true

# A Puma origin for tests and benchmarks:
#   puma -C - -e production -t 4:4 -b tcp://127.0.0.1:9292 config.ru
# /            a line of text
# /bytes?n=    n bytes, always the same
# /delay?ms=   answers after so many milliseconds
# /upload      the SHA-256 of the request body, in hex
# /up          what Rails calls its health check

require "digest"

BYTES_MAX = 1 << 26
DELAY_MS_MAX = 60_000
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

app = lambda do |env|
  case env["PATH_INFO"]
  when "/", "/up", "/health", "/healthz" then text(200, "hello from puma\n")
  when "/bytes" then bytes(number(env, "n", BYTES_MAX))
  when "/delay"
    sleep(number(env, "ms", DELAY_MS_MAX) / 1000.0)
    text(200, "waited\n")
  when "/upload" then upload(env["rack.input"])
  else text(404, "no such path\n")
  end
end

run app
