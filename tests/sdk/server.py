"""A server that records its requests."""

import http.server
import json
import threading


class Server:
    """Returns each of the given answers once, and then errors."""

    def __init__(self):
        self.kept, self.answers = [], []
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self):
                if self.headers.get("transfer-encoding") == "chunked":
                    body = b""
                    while length := int(self.rfile.readline(), 16):
                        body += self.rfile.read(length)
                        self.rfile.readline()
                    self.rfile.readline()
                else:
                    body = self.rfile.read(int(self.headers.get("content-length", 0)))
                outer.kept.append({
                    "method": self.command,
                    "target": self.path,
                    "headers": {name.lower(): value for name, value in self.headers.items()},
                    "body": body.decode(),
                })
                status, answer = (200, outer.answers.pop(0)) if outer.answers else (400, {"error": {"message": "no"}})
                answer = json.dumps(answer).encode()
                self.send_response(status)
                self.send_header("content-type", "application/json")
                self.send_header("content-length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, *_):
                pass

        self.http = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.http.server_port}"

    def __enter__(self):
        threading.Thread(target=self.http.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_):
        self.http.shutdown()
        self.http.server_close()

    def last(self):
        """Returns the last request, and clears the record."""
        last = self.kept[-1]
        self.kept.clear()
        return last
