# frozen_string_literal: true

# Records every request it receives: client, added field, method, target and body, each in hex.

def hex(value)
  value.to_s.unpack1("H*")
end

$stdout.sync = true
LOCK = Mutex.new

run(lambda do |env|
  body = env["rack.input"]&.read
  words = [env["HTTP_X_FORWARDED_FOR"], env["HTTP_X_DIFFERENTIAL"], env["REQUEST_METHOD"], env["REQUEST_URI"], body]
  LOCK.synchronize { puts "request=#{words.map { |word| hex(word) }.join(" ")}=" }
  [200, { "content-type" => "text/plain" }, ["taken\n"]]
end)
