//! The service of a layer that sends a view of the conversation.

/// Defines the middleware of a layer with a method `view`, which replaces the conversation of a request.
macro_rules! middleware {
    ($(#[$doc:meta])* $name:ident of $layer:ident) => {
        $(#[$doc])*
        #[derive(Clone, Debug)]
        pub struct $name<S> {
            inner: S,
            layer: $layer,
        }

        impl<S> $name<S> {
            pub(super) const fn new(inner: S, layer: $layer) -> Self {
                Self { inner, layer }
            }

            /// Gets a reference to the inner service.
            pub const fn get_ref(&self) -> &S {
                &self.inner
            }
        }

        impl<S, B> tower_service::Service<concentric_core::ChatRequest> for $name<S>
        where
            S: tower_service::Service<
                concentric_core::ChatRequest,
                Response = concentric_core::ChatResponse<B>,
            >,
            B: futures_core::Stream<Item = Result<concentric_core::Event, concentric_core::Error>>,
        {
            type Response = concentric_core::ChatResponse<$crate::window::WindowBody<B>>;
            type Error = S::Error;
            type Future = $crate::window::ResponseFuture<S::Future>;

            fn poll_ready(
                &mut self,
                cx: &mut std::task::Context<'_>,
            ) -> std::task::Poll<Result<(), S::Error>> {
                self.inner.poll_ready(cx)
            }

            fn call(&mut self, mut request: concentric_core::ChatRequest) -> Self::Future {
                $crate::window::place::<$layer>(&mut request.context);
                let sent = self.layer.view(&mut request);
                $crate::window::ResponseFuture::new(self.inner.call(request), sent)
            }
        }
    };
}

pub(crate) use middleware;
