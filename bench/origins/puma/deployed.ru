# frozen_string_literal: true

# A Rack application that is deployed repeatedly, each time at another of its ports, so that a response shows which
# deploy it comes from:
#   puma -C - -e production -t 2:4 -b tcp://127.0.0.1:9301 -b tcp://127.0.0.1:9302 deployed.ru
# /        the version, and the port that received the request
# /sick    503, as from an application that stays unhealthy
# /counts  requests so far, by port, without requests for /counts

VERSION = ENV.fetch("APP_VERSION", "0")
COUNTS = Hash.new(0)
LOCK = Mutex.new

def answer(status, text)
  [status, { "content-type" => "text/plain", "content-length" => text.bytesize.to_s }, [text]]
end

app = lambda do |env|
  path = env["PATH_INFO"]
  return answer(200, LOCK.synchronize { COUNTS.map { |port, count| "#{port} #{count}\n" }.join }) if path == "/counts"

  # SERVER_PORT comes from the client's Host field.
  port = env["puma.socket"].local_address.ip_port
  LOCK.synchronize { COUNTS[port] += 1 }
  path == "/sick" ? answer(503, "sick\n") : answer(200, "#{VERSION} #{port}\n")
end

run app
