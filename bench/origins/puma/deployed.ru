# frozen_string_literal: true

# A Rack application to be deployed again and again, each time at another of its ports, so that an answer tells which
# deploy it is from:
#   puma -C - -e production -t 2:4 -b tcp://127.0.0.1:9301 -b tcp://127.0.0.1:9302 deployed.ru
# /        the version, and the port that was asked
# /sick    503, as from an application that does not get well
# /counts  requests so far, by port; itself left out

VERSION = ENV.fetch("APP_VERSION", "0")
COUNTS = Hash.new(0)
LOCK = Mutex.new

def answer(status, text)
  [status, { "content-type" => "text/plain", "content-length" => text.bytesize.to_s }, [text]]
end

app = lambda do |env|
  path = env["PATH_INFO"]
  return answer(200, LOCK.synchronize { COUNTS.map { |port, count| "#{port} #{count}\n" }.join }) if path == "/counts"

  # SERVER_PORT is what the client says in its Host.
  port = env["puma.socket"].local_address.ip_port
  LOCK.synchronize { COUNTS[port] += 1 }
  path == "/sick" ? answer(503, "sick\n") : answer(200, "#{VERSION} #{port}\n")
end

run app
