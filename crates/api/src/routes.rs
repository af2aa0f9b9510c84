//! A router that knows its own routes: axum's cannot be asked, and someone must walk them all.

use axum::Router;
use axum::routing::MethodRouter;

use crate::App;

/// Routes on their way to a router.
pub(crate) struct Routes {
    pub(crate) router: Router<App>,
    pub(crate) paths: Vec<&'static str>,
}

impl Routes {
    pub(crate) fn new() -> Self {
        Self { router: Router::new(), paths: Vec::new() }
    }

    pub(crate) fn route(mut self, path: &'static str, methods: MethodRouter<App>) -> Self {
        self.paths.push(path);
        Self { router: self.router.route(path, methods), paths: self.paths }
    }

    /// Not the API's own: whatever the service behind it makes of a request.
    pub(crate) fn preview(self, path: &'static str, methods: MethodRouter<App>) -> Self {
        Self { router: self.router.route(path, methods), paths: self.paths }
    }
}
