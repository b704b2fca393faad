"""An OAuth server that gives tokens to a client with the right secret."""

from __future__ import annotations

import json
import threading
import time
from base64 import b64decode
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote

from joserfc import jwt
from joserfc.jwk import RSAKey

AUDIENCE = "replicator-tests"


@dataclass(frozen=True)
class Tokens:
    """`endpoint` gives tokens to `client` with `secret`. `keys`: the file with the signing keys."""

    endpoint: str
    keys: Path
    client: str
    secret: str


@contextmanager
def token_server(folder: Path, client: str, secret: str) -> Iterator[Tokens]:
    """A server on a free port (RFC 6749, section 4.4: client credentials)."""
    key = RSAKey.generate_key(2048, {"kid": "one", "use": "sig", "alg": "RS256"})
    keys = folder / "keys.json"
    keys.write_text(json.dumps({"keys": [key.as_dict(private=False)]}))

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            kind, _, said = self.headers.get("Authorization", "").partition(" ")
            user, _, word = b64decode(said).decode().partition(":") if kind == "Basic" else ("", "", "")
            known = (unquote(user), unquote(word)) == (client, secret)
            answer = {"access_token": self.token(), "token_type": "Bearer", "expires_in": 300} if known else {}
            body = json.dumps(answer or {"error": "invalid_client", "error_description": "not known"}).encode()
            self.send_response(200 if known else 401)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def token(self) -> str:
            now = int(time.time())
            claims = {"sub": client, "aud": AUDIENCE, "iat": now, "exp": now + 300, "scope": "kafka"}
            return jwt.encode({"alg": "RS256", "kid": "one"}, claims, key)

        def log_message(self, *_: object) -> None:
            """Logs nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield Tokens(f"http://127.0.0.1:{server.server_address[1]}/token", keys, client, secret)
    finally:
        server.shutdown()
        server.server_close()
