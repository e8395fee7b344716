//! The items of a request, and those of stored responses that it refers to.

use concentric_core::Str;
use serde::{
    Deserialize, Deserializer,
    de::{self, SeqAccess, Visitor, value::SeqAccessDeserializer},
};
use std::{collections::HashMap, fmt};

use super::super::{
    approval::{self, Decision},
    content::Content,
    failure::Failure,
    history::{Assistant, Call, Item},
};

/// The conversation: a text of the user, or items.
pub(super) struct Items(Vec<WireItem>);

enum WireItem {
    Item {
        id: Option<Str>,
        item: Item,
    },
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
                Ok(Items(vec![WireItem::Item { id: None, item }]))
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
            WireItem::Item { .. } => None,
        });
        ids.collect()
    }

    /// The items, with those of `stored` that they refer to.
    pub(super) fn resolve(self, stored: &mut HashMap<Str, Item>) -> Result<Vec<Item>, Failure> {
        let items = self.0.into_iter().enumerate().map(|(at, item)| match item {
            WireItem::Item { item, .. } => Ok(item),
            WireItem::Reference(id) => {
                let found = stored.remove(&id);
                found.ok_or_else(|| Failure::unknown_item(&format!("input[{at}].id"), &id))
            }
        });
        items.collect()
    }
}

/// The items of a stored response, by their ids.
pub(in crate::openai) fn output(response: &[u8]) -> impl Iterator<Item = (Str, Item)> {
    #[derive(Deserialize)]
    struct Output {
        output: Vec<WireItem>,
    }

    let output = serde_json::from_slice::<Output>(response).map(|it| it.output);
    let items = output.unwrap_or_default().into_iter();
    items.filter_map(|item| match item {
        WireItem::Item { id, item } => Some((id?, item)),
        WireItem::Reference(_) => None,
    })
}

impl<'de> Deserialize<'de> for WireItem {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        struct Fields {
            #[serde(default)]
            r#type: ItemType,
            id: Option<Str>,
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

        #[derive(Default, Deserialize)]
        #[serde(rename_all = "snake_case")]
        enum ItemType {
            #[default]
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

        let mut item = Fields::deserialize(deserializer)?;
        let missing = de::Error::missing_field;
        let call_id = |id: Option<Str>| id.ok_or_else(|| missing("call_id"));
        let id = item.id.take();
        let item = match item.r#type {
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
            ItemType::McpApprovalRequest => Item::Question(id.clone().unwrap_or_default()),
            ItemType::McpApprovalResponse => {
                let request = item.approval_request_id;
                Item::Decision(Decision {
                    request: request.ok_or_else(|| missing("approval_request_id"))?,
                    approve: item.approve.ok_or_else(|| missing("approve"))?,
                    reason: item.reason,
                })
            }
            ItemType::ItemReference => match &id {
                None => return Err(missing("id")),
                // The id does not name the response.
                Some(id) if id.starts_with(approval::PREFIX) => Item::Question(id.clone()),
                Some(id) => return Ok(Self::Reference(id.clone())),
            },
        };
        Ok(Self::Item { id, item })
    }
}
