use bytes::{Bytes, BytesMut};
use concentric_core::{ChatRequest, Interrupt, Str, ThreadId, ToolChoice, ToolSpecs};
use serde::{Deserialize, Serialize, Serializer, ser::SerializeSeq};
use serde_json::{Map, Value, json, value::RawValue};

use super::super::{
    answer::{Answer, Call, Ending, Item, Kind, Message, Piece, Reason},
    approval::Approval,
    encode::{Encode, Tokens, event, json},
    failure::Failure,
    input::Opening,
    stored::PREFIX,
};

/// The encoding of responses.
pub(super) struct Responses {
    run: Str,
    created: u64,
    model: Str,
    // The conversation of the run.
    thread: ThreadId,
    // The parameters of the request that a response repeats.
    echo: Map<String, Value>,
    tools: ToolSpecs,
    is_background: bool,
    // The number of the next event.
    number: u64,
}

impl Responses {
    /// `echo` has the instructions, the id of the previous response, and whether the answer is any JSON object.
    pub(super) fn new(
        opening: Opening,
        thread: ThreadId,
        request: &ChatRequest,
        (instructions, previous, is_any_object): (Option<&str>, Option<&str>, bool),
    ) -> Self {
        let options = &request.options;
        let choice = match &options.tool_choice {
            None | Some(ToolChoice::Auto) => json!("auto"),
            Some(ToolChoice::None) => json!("none"),
            Some(ToolChoice::Tool(name)) => json!({"type": "function", "name": name}),
            Some(_) => json!("required"),
        };
        let format = match &options.output_schema {
            Some(_) if is_any_object => json!({"type": "json_object"}),
            Some(output) => json!({
                "type": "json_schema",
                "name": output.name,
                "schema": output.schema,
                "strict": output.strict,
            }),
            None => json!({"type": "text"}),
        };
        let echo = json!({
            "background": opening.is_background,
            "instructions": instructions,
            "max_output_tokens": options.max_output_tokens,
            "metadata": options.metadata,
            "parallel_tool_calls": options.parallel_tool_calls.unwrap_or(true),
            "previous_response_id": previous,
            "reasoning": {"effort": options.reasoning_effort, "summary": null},
            "service_tier": "default",
            "store": opening.is_kept,
            "temperature": options.temperature,
            "text": {"format": format},
            "tool_choice": choice,
            "top_logprobs": 0,
            "top_p": options.top_p,
            "truncation": "disabled",
        });
        Self {
            run: opening.run,
            created: opening.created,
            model: opening.model,
            thread,
            echo: match echo {
                Value::Object(echo) => echo,
                _ => Map::new(),
            },
            tools: request.tools.clone(),
            is_background: opening.is_background,
            number: 0,
        }
    }

    fn response<'a>(&'a self, status: &'static str, output: Output<'a>) -> Response<'a> {
        Response {
            id: Str::concat([PREFIX, &self.run]),
            object: "response",
            created_at: self.created,
            status,
            error: None,
            incomplete_details: None,
            model: &self.model,
            output,
            tools: Tools(&self.tools),
            usage: None,
            concentric: None,
            echo: &self.echo,
        }
    }

    /// The response at the end of a run, and its status.
    fn ended<'a>(&'a self, answer: &'a Answer, ending: &Ending) -> Response<'a> {
        let reason = match ending.reason {
            Reason::Length => Some("max_output_tokens"),
            Reason::ContentFilter => Some("content_filter"),
            Reason::Stop | Reason::ToolCalls => None,
        };
        let status = if reason.is_some() {
            "incomplete"
        } else {
            "completed"
        };
        let (run, model) = (&self.run, &self.model);
        Response {
            incomplete_details: reason.map(|reason| Details { reason }),
            usage: Tokens::of(&ending.usage).map(Usage::from),
            concentric: ending.stopped.map(|outcome| Extension { outcome }),
            ..self.response(
                status,
                Output {
                    run,
                    model,
                    items: answer.items(),
                },
            )
        }
    }

    /// The response of a run that failed. In the background, a cancelled run has a status of its own.
    fn failure<'a>(&'a self, answer: &'a Answer, failure: &Failure) -> Response<'a> {
        let is_cancelled = self.is_background && failure.is_cancelled();
        let status = if is_cancelled { "cancelled" } else { "failed" };
        let (run, model, items) = (&self.run, &self.model, answer.items());
        Response {
            error: (!is_cancelled).then(|| failure.response_error()),
            ..self.response(status, Output { run, model, items })
        }
    }

    /// The response at the beginning of a run.
    fn begun(&self) -> Response<'_> {
        let (run, model) = (&self.run, &self.model);
        let items = &[];
        self.response("in_progress", Output { run, model, items })
    }

    fn write(&mut self, name: &'static str, body: Body<'_>, out: &mut BytesMut) {
        let numbered = Numbered {
            r#type: name,
            sequence_number: self.number,
            body,
        };
        event(name, &numbered, out);
        self.number += 1;
    }
}

#[derive(Serialize)]
struct Response<'a> {
    id: Str,
    object: &'static str,
    created_at: u64,
    status: &'static str,
    error: Option<Value>,
    incomplete_details: Option<Details>,
    model: &'a str,
    output: Output<'a>,
    tools: Tools<'a>,
    usage: Option<Usage>,
    #[serde(skip_serializing_if = "Option::is_none")]
    concentric: Option<Extension>,
    #[serde(flatten)]
    echo: &'a Map<String, Value>,
}

/// Data that other servers do not send.
#[derive(Serialize)]
struct Extension {
    outcome: &'static str,
}

#[derive(Serialize)]
struct Details {
    reason: &'static str,
}

#[derive(Serialize)]
struct Usage {
    input_tokens: u64,
    input_tokens_details: InputDetails,
    output_tokens: u64,
    output_tokens_details: OutputDetails,
    total_tokens: u64,
}

#[derive(Serialize)]
struct InputDetails {
    cache_write_tokens: u64,
    cached_tokens: u64,
}

#[derive(Serialize)]
struct OutputDetails {
    reasoning_tokens: u64,
}

impl From<Tokens> for Usage {
    fn from(tokens: Tokens) -> Self {
        Self {
            input_tokens: tokens.input,
            input_tokens_details: InputDetails {
                cache_write_tokens: tokens.cache_write,
                cached_tokens: tokens.cached,
            },
            output_tokens: tokens.output,
            output_tokens_details: OutputDetails {
                reasoning_tokens: tokens.reasoning,
            },
            total_tokens: tokens.total,
        }
    }
}

/// The client's tools.
struct Tools<'a>(&'a ToolSpecs);

impl Serialize for Tools<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct Tool<'a> {
            r#type: &'static str,
            name: &'a str,
            description: Option<&'a str>,
            parameters: &'a Value,
            strict: bool,
        }

        serializer.collect_seq(self.0.iter().map(|tool| Tool {
            r#type: "function",
            name: &tool.name,
            description: Some(&*tool.description).filter(|text| !text.is_empty()),
            parameters: &tool.input_schema,
            strict: false,
        }))
    }
}

/// The items of an answer.
struct Output<'a> {
    run: &'a str,
    model: &'a str,
    items: &'a [Item],
}

impl Serialize for Output<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut output = serializer.serialize_seq(Some(self.items.len()))?;
        for (at, item) in self.items.iter().enumerate() {
            output.serialize_element(&match item {
                Item::Message(message) => WireItem::message(self.run, at, message),
                Item::Call(call) => WireItem::call(self.run, at, call, &call.arguments),
                Item::Approval(approval) => WireItem::approval(self.model, approval),
            })?;
        }
        output.end()
    }
}

#[derive(Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum WireItem<'a> {
    Message {
        id: String,
        status: &'static str,
        role: &'static str,
        content: Vec<WirePiece<'a>>,
    },
    Reasoning {
        id: String,
        status: &'static str,
        summary: [(); 0],
        content: Vec<WirePiece<'a>>,
    },
    FunctionCall {
        id: String,
        status: &'static str,
        call_id: &'a str,
        name: &'a str,
        arguments: &'a str,
    },
    McpApprovalRequest {
        id: &'a str,
        // The agent that has the tool.
        server_label: &'a str,
        name: &'a str,
        arguments: &'a str,
    },
}

#[derive(Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum WirePiece<'a> {
    OutputText {
        text: &'a str,
        annotations: [(); 0],
        logprobs: [(); 0],
    },
    Refusal {
        refusal: &'a str,
    },
    ReasoningText {
        text: &'a str,
    },
}

impl<'a> WireItem<'a> {
    fn message(run: &str, at: usize, message: &'a Message) -> Self {
        let id = message_id(run, at, message.is_reasoning);
        let status = message.status.as_str();
        let content = message.parts.iter();
        let content = content.map(|piece| WirePiece::new(piece.kind, &piece.text));
        let content = content.collect();
        match message.is_reasoning {
            true => Self::Reasoning {
                id,
                status,
                summary: [],
                content,
            },
            false => Self::Message {
                id,
                status,
                role: "assistant",
                content,
            },
        }
    }

    fn call(run: &str, at: usize, call: &'a Call, arguments: &'a str) -> Self {
        Self::FunctionCall {
            id: call_item_id(run, at),
            status: call.status.as_str(),
            call_id: &call.id,
            name: &call.name,
            arguments,
        }
    }

    fn approval(model: &'a str, approval: &'a Approval) -> Self {
        Self::McpApprovalRequest {
            id: &approval.id,
            server_label: model,
            name: &approval.name,
            arguments: &approval.arguments,
        }
    }
}

impl<'a> WirePiece<'a> {
    const fn new(kind: Kind, text: &'a str) -> Self {
        match kind {
            Kind::Refusal => Self::Refusal { refusal: text },
            Kind::Reasoning => Self::ReasoningText { text },
            Kind::Text => Self::OutputText {
                text,
                annotations: [],
                logprobs: [],
            },
        }
    }
}

fn message_id(run: &str, at: usize, is_reasoning: bool) -> String {
    let prefix = if is_reasoning { "rs" } else { "msg" };
    format!("{prefix}_{run}_{at}")
}

fn call_item_id(run: &str, at: usize) -> String {
    format!("fc_{run}_{at}")
}

/// The id of the response that has an item, by the id of the item.
pub(in crate::openai) fn response_of(item: &str) -> Option<Str> {
    let (_, run) = item.split_once('_')?;
    let (run, _) = run.rsplit_once('_')?;
    Some(Str::concat([PREFIX, run]))
}

#[derive(Serialize)]
struct Numbered<'a> {
    r#type: &'static str,
    sequence_number: u64,
    #[serde(flatten)]
    body: Body<'a>,
}

/// The fields of an event about an item.
#[derive(Serialize)]
#[serde(untagged)]
enum Body<'a> {
    Item {
        output_index: usize,
        item: WireItem<'a>,
    },
    Part {
        item_id: String,
        output_index: usize,
        content_index: usize,
        part: WirePiece<'a>,
    },
    Delta {
        item_id: String,
        output_index: usize,
        content_index: usize,
        delta: &'a str,
        #[serde(skip_serializing_if = "Option::is_none")]
        logprobs: Option<[(); 0]>,
    },
    Text {
        item_id: String,
        output_index: usize,
        content_index: usize,
        text: &'a str,
        #[serde(skip_serializing_if = "Option::is_none")]
        logprobs: Option<[(); 0]>,
    },
    Refusal {
        item_id: String,
        output_index: usize,
        content_index: usize,
        refusal: &'a str,
    },
    ArgumentsDelta {
        item_id: String,
        output_index: usize,
        delta: &'a str,
    },
    Arguments {
        item_id: String,
        output_index: usize,
        name: &'a str,
        arguments: &'a str,
    },
}

impl Encode for Responses {
    fn whole(&self, answer: &Answer, ending: &Ending) -> Bytes {
        json(&self.ended(answer, ending))
    }

    fn live(&self) -> Bytes {
        json(&self.begun())
    }

    fn failed(&self, answer: &Answer, failure: &Failure) -> Bytes {
        json(&self.failure(answer, failure))
    }

    fn begin(&mut self, out: &mut BytesMut) {
        for name in ["response.created", "response.in_progress"] {
            write_response(self.number, name, &self.begun(), out);
            self.number += 1;
        }
    }

    fn message_start(&mut self, item: usize, message: &Message, out: &mut BytesMut) {
        let body = Body::Item {
            output_index: item,
            item: WireItem::message(&self.run, item, message),
        };
        self.write("response.output_item.added", body, out);
    }

    fn piece_start(&mut self, item: usize, at: usize, kind: Kind, out: &mut BytesMut) {
        let body = Body::Part {
            item_id: message_id(&self.run, item, kind == Kind::Reasoning),
            output_index: item,
            content_index: at,
            part: WirePiece::new(kind, ""),
        };
        self.write("response.content_part.added", body, out);
    }

    fn delta(&mut self, item: usize, at: usize, kind: Kind, text: &str, out: &mut BytesMut) {
        let body = Body::Delta {
            item_id: message_id(&self.run, item, kind == Kind::Reasoning),
            output_index: item,
            content_index: at,
            delta: text,
            logprobs: logprobs(kind),
        };
        let name = match kind {
            Kind::Text => "response.output_text.delta",
            Kind::Refusal => "response.refusal.delta",
            Kind::Reasoning => "response.reasoning_text.delta",
        };
        self.write(name, body, out);
    }

    fn piece_end(&mut self, item: usize, at: usize, piece: &Piece, out: &mut BytesMut) {
        let item_id = message_id(&self.run, item, piece.kind == Kind::Reasoning);
        let (output_index, content_index) = (item, at);
        let body = match piece.kind {
            Kind::Refusal => Body::Refusal {
                item_id: item_id.clone(),
                output_index,
                content_index,
                refusal: &piece.text,
            },
            Kind::Text | Kind::Reasoning => Body::Text {
                item_id: item_id.clone(),
                output_index,
                content_index,
                text: &piece.text,
                logprobs: logprobs(piece.kind),
            },
        };
        let name = match piece.kind {
            Kind::Text => "response.output_text.done",
            Kind::Refusal => "response.refusal.done",
            Kind::Reasoning => "response.reasoning_text.done",
        };
        self.write(name, body, out);
        let body = Body::Part {
            item_id,
            output_index,
            content_index,
            part: WirePiece::new(piece.kind, &piece.text),
        };
        self.write("response.content_part.done", body, out);
    }

    fn message_end(&mut self, item: usize, message: &Message, out: &mut BytesMut) {
        let body = Body::Item {
            output_index: item,
            item: WireItem::message(&self.run, item, message),
        };
        self.write("response.output_item.done", body, out);
    }

    fn call_start(&mut self, item: usize, call: &Call, out: &mut BytesMut) {
        let body = Body::Item {
            output_index: item,
            item: WireItem::call(&self.run, item, call, ""),
        };
        self.write("response.output_item.added", body, out);
    }

    fn call_delta(&mut self, item: usize, _: &Call, more: &str, out: &mut BytesMut) {
        let body = Body::ArgumentsDelta {
            item_id: call_item_id(&self.run, item),
            output_index: item,
            delta: more,
        };
        self.write("response.function_call_arguments.delta", body, out);
    }

    fn call_end(&mut self, item: usize, call: &Call, out: &mut BytesMut) {
        let body = Body::Arguments {
            item_id: call_item_id(&self.run, item),
            output_index: item,
            name: &call.name,
            arguments: &call.arguments,
        };
        self.write("response.function_call_arguments.done", body, out);
        let body = Body::Item {
            output_index: item,
            item: WireItem::call(&self.run, item, call, &call.arguments),
        };
        self.write("response.output_item.done", body, out);
    }

    fn approval_of(&self, interrupt: &Interrupt) -> Option<Approval> {
        Approval::new(interrupt, &self.thread)
    }

    fn approval(&mut self, item: usize, approval: &Approval, out: &mut BytesMut) {
        let model = self.model.clone();
        for name in ["response.output_item.added", "response.output_item.done"] {
            let body = Body::Item {
                output_index: item,
                item: WireItem::approval(&model, approval),
            };
            self.write(name, body, out);
        }
    }

    fn unstored(&mut self) {
        self.echo.insert("store".to_owned(), false.into());
    }

    fn finish(&mut self, answer: &Answer, ending: &Ending, out: &mut BytesMut) {
        let response = self.ended(answer, ending);
        let name = match response.incomplete_details {
            Some(_) => "response.incomplete",
            None => "response.completed",
        };
        write_response(self.number, name, &response, out);
    }

    fn fail(&mut self, answer: &Answer, failure: &Failure, out: &mut BytesMut) {
        let response = self.failure(answer, failure);
        write_response(self.number, "response.failed", &response, out);
    }

    fn replaced(&mut self, response: &str, out: &mut BytesMut) {
        #[derive(Deserialize)]
        struct Ended<'a> {
            status: &'a str,
        }

        let ended = serde_json::from_str::<Ended<'_>>(response);
        let name = match ended.map(|ended| ended.status) {
            Ok("completed") => "response.completed",
            Ok("incomplete") => "response.incomplete",
            _ => "response.failed",
        };
        if let Ok(response) = serde_json::from_str::<&RawValue>(response) {
            write_response(self.number, name, &response, out);
        }
    }
}

/// The log probabilities of an event, which only text has.
fn logprobs(kind: Kind) -> Option<[(); 0]> {
    (kind == Kind::Text).then_some([])
}

fn write_response(number: u64, name: &str, response: &impl Serialize, out: &mut BytesMut) {
    #[derive(Serialize)]
    struct OfResponse<'a, R> {
        r#type: &'a str,
        sequence_number: u64,
        response: &'a R,
    }

    let of_response = OfResponse {
        r#type: name,
        sequence_number: number,
        response,
    };
    event(name, &of_response, out);
}
