// A provider that fails after it has spoken: node upstream.mjs
//
// It prints its address. Below `/cut` its streams break off in the middle of a frame; below `/end`
// they end in order, before the service's terminal event; below `/error` they hold an error event.

import { createServer } from "node:http";

const chunk = (content) =>
  `data: ${JSON.stringify({
    id: "chatcmpl-1",
    object: "chat.completion.chunk",
    model: "broken",
    choices: [{ index: 0, delta: { role: "assistant", content }, finish_reason: null }],
  })}\n\n`;

const server = createServer((request, response) => {
  request.resume().on("end", () => {
    response.writeHead(200, { "content-type": "text/event-stream" });
    response.write(chunk("Half an"));
    response.write(chunk(" answ"), () => {
      if (request.url.startsWith("/cut")) {
        response.write('data: {"id":"chatcmpl-1","choi', () =>
          setTimeout(() => response.socket.resetAndDestroy(), 50),
        );
      } else if (request.url.startsWith("/error")) {
        response.end('data: {"error":{"message":"overloaded","type":"server_error","code":503}}\n\n');
      } else {
        response.end();
      }
    });
  });
});

server.listen(0, "127.0.0.1", () => console.log(`http://127.0.0.1:${server.address().port}`));
