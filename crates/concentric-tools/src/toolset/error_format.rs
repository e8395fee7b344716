use super::Toolset;
use crate::{ErrorFormat, error::no_toolset};
use concentric_core::agent::{Installer, Plugin};

impl Toolset {
    /// Sets the text that the model reads for errors of the tools and their layers that were not
    /// written for it; see [`ErrorFormat`].
    #[must_use]
    pub fn error_format(self, format: ErrorFormat) -> Self {
        self.change(|inner| inner.error_format = Some(format))
    }

    /// The format of the errors of a tool and of the layers around it.
    pub(crate) fn error_format_for(&self, tool: &str) -> Option<&ErrorFormat> {
        match self.find(tool) {
            Some(tool) => tool.own_error_format(),
            None => self.inner.error_format.as_ref(),
        }
    }
}

/// Applies to the agent's tools, where neither the tool nor the toolset formats an error.
impl Plugin for ErrorFormat {
    fn install(self, at: &mut Installer<'_>) {
        let Some(tools) = at.tools_mut::<Toolset>() else {
            return at.fault(no_toolset("ErrorFormat"));
        };
        *tools = std::mem::take(tools).change(|inner| {
            let own = inner.error_format.take();
            inner.error_format = Some(match own {
                Some(own) => own.within(Some(&self)),
                None => self,
            });
        });
    }
}
