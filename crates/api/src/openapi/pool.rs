//! The warm pool.

use serde_json::json;
use wakeful_api_types::{Pool, PoolList, PutPool};
use wakeful_model::Code;

use super::entry::{Entry, get, put};

pub(super) fn entries() -> Vec<Entry> {
    vec![
        get("/v1/pool", "listPools", "List the pools of sandboxes that are made ahead")
            .answers::<PoolList>(200, "By template and size")
            .refuses(&[Code::UnknownField, Code::InvalidField]),
        put("/v1/pool/{template}/{size}", "putPool", "Set how many sandboxes of a template and size are made ahead")
            .about(
                "It holds until it is set again, also over restarts. A create that fits gets one of them and does not \
                    wait for a clone; when there is none it gets a clone, as ever.",
            )
            .body::<PutPool>(&json!({"target": 3}))
            .answers::<Pool>(200, "The pool, which is filled in the background")
            .refuses(&[Code::MissingField, Code::InvalidSize, Code::TemplateNotFound, Code::ShuttingDown]),
    ]
}
