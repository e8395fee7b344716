// A page with `useChat`, whose DOM has all of each message. It keeps the messages in the browser, as a page does that
// has no route to read them from; `?chat=ID` names the chat.

import { useChat } from "@ai-sdk/react";
import { DefaultChatTransport, lastAssistantMessageIsCompleteWithApprovalResponses } from "ai";
import { useEffect, useState } from "react";
import { createRoot } from "react-dom/client";

const id = new URLSearchParams(location.search).get("chat");
const stored = JSON.parse(localStorage.getItem(id) ?? "[]");
const api = "/chat";
const transport = new DefaultChatTransport({
  api,
  prepareSendMessagesRequest: ({ id, messages, trigger, messageId, body }) => ({
    body: { ...body, id, trigger, messageId, messages: messages.slice(-1) },
  }),
});

function Page() {
  const chat = useChat({
    id,
    messages: stored,
    resume: true,
    transport,
    sendAutomaticallyWhen: lastAssistantMessageIsCompleteWithApprovalResponses,
  });
  const { messages, status, error } = chat;
  const [prompt, setPrompt] = useState("");
  useEffect(() => localStorage.setItem(id, JSON.stringify(messages)), [messages]);
  const send = (event) => {
    event.preventDefault();
    chat.sendMessage({ text: prompt });
    setPrompt("");
  };
  return (
    <>
      {messages.map((message) => (
        <article key={message.id} data-role={message.role} data-json={JSON.stringify(message)}>
          {message.parts.map((part, at) => (
            <Part key={at} part={part} decide={chat.addToolApprovalResponse} />
          ))}
        </article>
      ))}
      <output id="status">{status}</output>
      <p role="alert">{error?.message}</p>
      <form onSubmit={send}>
        <input aria-label="Message" value={prompt} onChange={(event) => setPrompt(event.target.value)} />
        <button>Send</button>
      </form>
      <button onClick={() => fetch(`${api}/${id}/stream`, { method: "DELETE" })}>Stop</button>
      <button onClick={() => chat.stop()}>Disconnect</button>
      <button onClick={() => chat.resumeStream()}>Resume</button>
      <button onClick={() => chat.regenerate()}>Regenerate</button>
    </>
  );
}

function Part({ part, decide }) {
  if (part.type === "text" || part.type === "reasoning") {
    return <p className={part.type}>{part.text}</p>;
  }
  if (part.type !== "dynamic-tool") return <pre className={part.type}>{JSON.stringify(part.data)}</pre>;
  const { toolName, state, input, output, errorText, approval } = part;
  const answer = (approved) => () =>
    decide({ id: approval.id, approved, ...(!approved && { reason: "Too much." }) });
  return (
    <section className="tool" data-state={state}>
      <code>{`${toolName} ${JSON.stringify(input)}`}</code>
      <samp>{errorText ?? (typeof output === "string" ? output : JSON.stringify(output))}</samp>
      {state === "approval-requested" && (
        <>
          <button onClick={answer(true)}>Approve</button>
          <button onClick={answer(false)}>Deny</button>
        </>
      )}
    </section>
  );
}

createRoot(document.getElementById("root")).render(<Page />);
