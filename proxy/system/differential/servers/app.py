"""Records every request it receives: client, added field, method, target and body, each in hex."""


def field(scope, name):
    return b", ".join(value for key, value in scope["headers"] if key == name)


async def app(scope, receive, send):
    if scope["type"] != "http":
        return
    body = b""
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            # The rest of the body never arrived.
            return
        body += message.get("body", b"")
        if not message.get("more_body"):
            break
    query = scope["query_string"]
    target = scope["raw_path"] + (b"?" + query if query else b"")
    client, token = field(scope, b"x-forwarded-for"), field(scope, b"x-differential")
    words = [client, token, scope["method"].encode(), target, body]
    print("request=" + " ".join(word.hex() for word in words) + "=", flush=True)
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"6")]})
    await send({"type": "http.response.body", "body": b"taken\n"})
