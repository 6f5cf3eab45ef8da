# frozen_string_literal: true

# Files of the folder STORAGE that the application leaves to the server in front:
#   /NAME         named by X-Sendfile, as Rails does with `x_sendfile_header`
#   /accel/NAME   named by X-Accel-Redirect, by a URL below /protected
#   /outside      a file that is not in the folder

STORAGE = ENV.fetch("STORAGE")

# What `send_file` of Rails responds with. Its own bytes are wrong, so that they show if they are sent.
class FileBody
  attr_reader :to_path

  def initialize(path)
    @to_path = path
  end

  def each
    yield "from the application"
  end
end

file = lambda do |path|
  [200, { "content-type" => "application/x-stored", "content-disposition" => "inline" }, FileBody.new(path)]
end
stored = ->(env) { file.call(File.join(STORAGE, Rack::Utils.unescape_path(env["PATH_INFO"]))) }

map "/accel" do
  use Rack::Sendfile, "X-Accel-Redirect", [[STORAGE, "/protected"]]
  run stored
end

map "/outside" do
  use Rack::Sendfile, "X-Sendfile"
  run ->(_env) { file.call("/etc/passwd") }
end

map "/" do
  use Rack::Sendfile, "X-Sendfile"
  run stored
end
