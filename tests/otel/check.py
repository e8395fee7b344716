"""Starts a collector, exports the spans and metrics of two programs to it, and checks what arrived.

`check.py PROGRAM EXAMPLE`: `concentric-otel` and the example `otel`. The collector is Rotel, which receives OTLP over gRPC and sends on, in batches, what it has
received. It sends to a server in this script, which decodes it with the package `opentelemetry-proto`.
"""

import gzip
import http.server
import os
import pathlib
import socket
import subprocess
import sys
import tempfile
import threading
import time

import rotel
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

SECRET = "sk-1234"
KINDS = {Span.SPAN_KIND_INTERNAL: "internal", Span.SPAN_KIND_CLIENT: "client"}
SECONDS = 30

spans, metrics, bodies = [], [], []


class Received(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        body = self.rfile.read(int(self.headers["content-length"]))
        if self.headers["content-encoding"] == "gzip":
            body = gzip.decompress(body)
        bodies.append(body)
        if self.path == "/v1/traces":
            for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
                spans.extend(span for scope in resource.scope_spans for span in scope.spans)
        else:
            for resource in ExportMetricsServiceRequest.FromString(body).resource_metrics:
                metrics.extend(metric for scope in resource.scope_metrics for metric in scope.metrics)
        self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, *_):
        pass


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def wait_for(what, condition):
    end = time.monotonic() + SECONDS
    while not condition():
        if time.monotonic() > end:
            sys.exit(f"{what} after {SECONDS} seconds")
        time.sleep(0.05)


def accepts(port):
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0


def value(any_value):
    kind = any_value.WhichOneof("value")
    if kind == "array_value":
        return [value(item) for item in any_value.array_value.values]
    return getattr(any_value, kind)


def attributes(of):
    return {it.key: value(it.value) for it in of.attributes}


def tree(parent=b"", depth=0):
    """A line per span, in the order of their starts."""
    children = sorted((it for it in spans if it.parent_span_id == parent), key=lambda it: it.start_time_unix_nano)
    for span in children:
        failed = " error" if span.status.code == Status.STATUS_CODE_ERROR else ""
        outcome = attributes(span)["concentric.outcome"]
        yield f"{'  ' * depth}{span.name} ({KINDS[span.kind]}): {outcome}{failed}"
        yield from tree(span.span_id, depth + 1)


def equal(what, found, expected):
    if found != expected:
        sys.exit(f"{what} is\n{found}\nand not\n{expected}")


def check_spans():
    lines = list(tree())
    equal("the tree", lines, [
        "invoke_agent clerk (internal): interrupted",
        "  chat (client): failed error",
        "  chat (client): failed error",
        "  chat claude-opus-4-8 (client): completed",
        "  execute_tool look (internal): done",
        "  execute_tool research (internal): done",
        "    invoke_agent research (internal): completed",
        "      chat gpt-5.5 (client): completed",
        "  chat claude-opus-4-8 (client): completed",
        "invoke_agent clerk (internal): completed",
        "  execute_tool pay (internal): done",
        "  chat claude-opus-4-8 (client): completed",
    ])
    print("\n".join(lines))
    first, second = (it for it in spans if not it.parent_span_id)
    if first.start_time_unix_nano > second.start_time_unix_nano:
        first, second = second, first
    equal("the number of traces", len({it.trace_id for it in spans}), 2)
    links = [(link.trace_id, link.span_id) for link in second.links]
    equal("the link of the resumed run", links, [(first.trace_id, first.span_id)])
    equal("the number of links", sum(len(it.links) for it in spans), 1)
    equal("the number of span events", sum(len(it.events) for it in spans), 0)
    named = {(it.trace_id, it.name): attributes(it) for it in spans}

    run = named[first.trace_id, "invoke_agent clerk"]
    equal("the run's tokens", (run["gen_ai.usage.input_tokens"], run["gen_ai.usage.output_tokens"]), (217, 28))
    equal("the interrupts", run["concentric.interrupts"], 1)
    failed = named[first.trace_id, "chat"]
    equal("the failure", (failed["error.type"], failed["gen_ai.provider.name"]), ("overloaded", "openai"))
    chat = named[first.trace_id, "chat claude-opus-4-8"]
    equal("the reasons", chat["gen_ai.response.finish_reasons"], ["tool_calls"])
    resumed = named[second.trace_id, "invoke_agent clerk"]
    equal("the resumed run's tokens", resumed["gen_ai.usage.input_tokens"], 200)

    # Content is opted in for the resumed run only, with its keys removed.
    content = ("gen_ai.input.messages", "gen_ai.output.messages", "gen_ai.tool.call.arguments", "gen_ai.tool.call.result")
    for span in spans:
        found = [name for name in attributes(span) if name in content]
        equal(f"the content of {span.name}", bool(found), span.trace_id == second.trace_id)
    if "[key]" not in resumed["gen_ai.output.messages"]:
        sys.exit("the answer is not recorded")
    if any(SECRET.encode() in body for body in bodies):
        sys.exit("a secret was exported")


def check_metrics():
    counts = {}
    for metric in metrics:
        for point in metric.histogram.data_points:
            of = attributes(point)
            at = (metric.name, of.get("gen_ai.tool.name") or of.get("gen_ai.agent.name") or
                  of.get("gen_ai.token.type") or of.get("gen_ai.provider.name"))
            counts[at] = counts.get(at, 0) + point.count
    expected = {
        ("gen_ai.client.operation.duration", "openai"): 3,
        ("gen_ai.client.operation.duration", "anthropic"): 3,
        ("gen_ai.client.operation.time_to_first_chunk", "openai"): 1,
        ("gen_ai.client.operation.time_to_first_chunk", "anthropic"): 3,
        ("gen_ai.client.operation.time_per_output_chunk", "anthropic"): 2,
        ("gen_ai.client.token.usage", "input"): 4,
        ("gen_ai.client.token.usage", "output"): 4,
        ("gen_ai.invoke_agent.duration", "clerk"): 2,
        ("gen_ai.invoke_agent.duration", "research"): 1,
        ("gen_ai.execute_tool.duration", "look"): 1,
        ("gen_ai.execute_tool.duration", "research"): 1,
        ("gen_ai.execute_tool.duration", "pay"): 1,
    }
    equal("the number of values", counts, expected)
    print(f"{len(counts)} histograms by name and subject, each with one value per operation")


def check_example(example, environment):
    """The example has the same answer with the collector and without one."""
    for received in (spans, metrics, bodies):
        received.clear()
    command = [example, "which files are here?"]
    answers = []
    for endpoint in (environment["OTEL_EXPORTER_OTLP_ENDPOINT"], f"http://127.0.0.1:{free_port()}"):
        answer = subprocess.run(
            command, env={**environment, "OTEL_EXPORTER_OTLP_ENDPOINT": endpoint, "CONCENTRIC_PROVIDER": "offline"},
            check=True, timeout=SECONDS, capture_output=True, text=True)
        answers.append(answer.stdout)
        equal(f"the loss at {endpoint}", "Telemetry was lost" in answer.stderr, len(answers) == 2)
    equal("the answer without a collector", answers[1], answers[0])
    wait_for("the run of the example has not arrived", lambda: any(not it.parent_span_id for it in spans))
    wait_for("its metrics have not arrived", lambda: any(it.name == "gen_ai.invoke_agent.duration" for it in metrics))
    lines = list(tree())
    equal("the first line of the tree", lines[0], "invoke_agent files (internal): completed")
    equal("the kinds of its other spans", {line.split()[0] for line in lines[1:]}, {"chat", "execute_tool"})
    print("\n".join(lines))


def main():
    program, example = (pathlib.Path(it).resolve() for it in sys.argv[1:3])
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Received)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    grpc, http_port = free_port(), free_port()
    agent = pathlib.Path(rotel.__file__).parent / "rotel-agent"
    collector = subprocess.Popen([
        agent, "start",
        "--otlp-grpc-endpoint", f"127.0.0.1:{grpc}",
        "--otlp-http-endpoint", f"127.0.0.1:{http_port}",
        "--exporter", "otlp",
        "--otlp-exporter-endpoint", f"http://127.0.0.1:{server.server_port}",
        "--otlp-exporter-protocol", "http",
    ], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_for("the collector does not listen", lambda: accepts(grpc))
        environment = {**os.environ, "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{grpc}"}
        with tempfile.TemporaryDirectory() as folder:
            for command in ("run", "resume"):
                subprocess.run([program, command, f"{folder}/state.json"], env=environment, check=True, timeout=SECONDS)
        wait_for("the resumed run has not arrived", lambda: sum(not it.parent_span_id for it in spans) == 2)
        wait_for("the metrics have not arrived",
                 lambda: sum(it.name == "gen_ai.invoke_agent.duration" for it in metrics) == 2)
        check_spans()
        check_metrics()
        check_example(example, environment)
    finally:
        collector.terminate()
        collector.wait()


main()
