//! The items of a request, and those of stored responses that it refers to.

use concentric_core::Str;
use serde::{
    Deserialize, Deserializer,
    de::{self, SeqAccess, Visitor, value::SeqAccessDeserializer},
};
use serde_json::{Value, value::RawValue};
use std::{collections::BTreeMap, fmt};

use super::super::{
    approval::{self, Decision},
    content::Content,
    failure::Failure,
    history::{Assistant, Call, Item},
};

/// The conversation: a text of the user, or items.
pub(super) struct Items(Vec<WireItem>);

enum WireItem {
    Item(Item),
    /// The id of an item of a stored response.
    Reference(Str),
}

impl<'de> Deserialize<'de> for Items {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct ItemsVisitor;

        impl<'de> Visitor<'de> for ItemsVisitor {
            type Value = Items;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string or an array of items")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Items, E> {
                let item = Item::User(Content::Text(text.into()));
                Ok(Items(vec![WireItem::Item(item)]))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, seq: A) -> Result<Items, A::Error> {
                Vec::deserialize(SeqAccessDeserializer::new(seq)).map(Items)
            }
        }

        deserializer.deserialize_any(ItemsVisitor)
    }
}

impl Items {
    pub(super) const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The ids of the items of stored responses.
    pub(super) fn references(&self) -> Vec<&str> {
        let ids = self.0.iter().filter_map(|item| match item {
            WireItem::Reference(id) => Some(id.as_str()),
            WireItem::Item(_) => None,
        });
        ids.collect()
    }

    /// The items, with those of `stored` that they refer to.
    pub(super) fn resolve(
        self,
        mut stored: BTreeMap<Str, Box<RawValue>>,
    ) -> Result<Vec<Item>, Failure> {
        let items = self.0.into_iter().enumerate().map(|(at, item)| match item {
            WireItem::Item(item) => Ok(item),
            WireItem::Reference(id) => {
                let found = stored.remove(&id);
                let found = found.and_then(|json| serde_json::from_str(json.get()).ok());
                match found {
                    Some(WireItem::Item(item)) => Ok(item),
                    _ => Err(Failure::unknown_item(&format!("input[{at}].id"), &id)),
                }
            }
        });
        items.collect()
    }
}

/// The items that a response has, with their ids.
pub(in crate::openai) fn output(response: &str) -> impl Iterator<Item = (Str, Box<RawValue>)> {
    #[derive(Deserialize)]
    struct Output {
        output: Box<RawValue>,
    }

    let output = serde_json::from_str::<Output>(response).map(|it| it.output);
    output.map(|it| items(it.get())).into_iter().flatten()
}

/// The items of a JSON array, with their ids.
pub(in crate::openai) fn items(json: &str) -> impl Iterator<Item = (Str, Box<RawValue>)> + use<> {
    #[derive(Deserialize)]
    struct Id {
        id: Str,
    }

    let items = serde_json::from_str::<Vec<Box<RawValue>>>(json).unwrap_or_default();
    items.into_iter().filter_map(|item| {
        let Id { id } = serde_json::from_str(item.get()).ok()?;
        Some((id, item))
    })
}

impl<'de> Deserialize<'de> for WireItem {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        struct Fields {
            r#type: Option<ItemType>,
            // An id that is no string is of no item here.
            id: Option<Value>,
            role: Option<Role>,
            content: Option<Content>,
            call_id: Option<Str>,
            name: Option<Str>,
            arguments: Option<Str>,
            output: Option<Content>,
            approval_request_id: Option<Str>,
            approve: Option<bool>,
            reason: Option<String>,
        }

        #[derive(Deserialize)]
        #[serde(rename_all = "snake_case")]
        enum ItemType {
            Message,
            FunctionCall,
            FunctionCallOutput,
            Reasoning,
            McpApprovalRequest,
            McpApprovalResponse,
            ItemReference,
        }

        #[derive(Deserialize)]
        #[serde(rename_all = "lowercase")]
        enum Role {
            Developer,
            System,
            User,
            Assistant,
        }

        let item = Fields::deserialize(deserializer)?;
        let missing = de::Error::missing_field;
        let call_id = |id: Option<Str>| id.ok_or_else(|| missing("call_id"));
        let id = item.id.as_ref().and_then(Value::as_str);
        let default = match (&item.role, id) {
            (None, Some(_)) => ItemType::ItemReference,
            _ => ItemType::Message,
        };
        Ok(Self::Item(match item.r#type.unwrap_or(default) {
            ItemType::Message => {
                let role = item.role.ok_or_else(|| missing("role"))?;
                let content = item.content.ok_or_else(|| missing("content"))?;
                match role {
                    Role::Developer => Item::System {
                        role: "developer",
                        content,
                    },
                    Role::System => Item::System {
                        role: "system",
                        content,
                    },
                    Role::User => Item::User(content),
                    Role::Assistant => Item::Assistant(Assistant {
                        content: content.into_parts(),
                        calls: Vec::new(),
                    }),
                }
            }
            ItemType::FunctionCall => Item::Assistant(Assistant {
                content: Vec::new(),
                calls: vec![Call {
                    id: call_id(item.call_id)?,
                    name: item.name.ok_or_else(|| missing("name"))?,
                    arguments: item.arguments.ok_or_else(|| missing("arguments"))?,
                }],
            }),
            ItemType::FunctionCallOutput => Item::Tool {
                call_id: call_id(item.call_id)?,
                content: item.output.ok_or_else(|| missing("output"))?,
            },
            ItemType::Reasoning => Item::Aside,
            ItemType::McpApprovalRequest => Item::Question(id.unwrap_or_default().into()),
            ItemType::McpApprovalResponse => {
                let request = item.approval_request_id;
                Item::Decision(Decision {
                    request: request.ok_or_else(|| missing("approval_request_id"))?,
                    approve: item.approve.ok_or_else(|| missing("approve"))?,
                    reason: item.reason,
                })
            }
            ItemType::ItemReference => match id {
                None => return Err(missing("id")),
                // The id does not name the response.
                Some(id) if id.starts_with(approval::PREFIX) => Item::Question(id.into()),
                Some(id) => return Ok(Self::Reference(id.into())),
            },
        }))
    }
}
