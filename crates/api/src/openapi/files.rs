//! Files in a sandbox.

use utoipa::openapi::schema::OneOfBuilder;
use utoipa::openapi::{Ref, Schema};
use utoipa::{PartialSchema, ToSchema};
use wakeful_api_types::{EVENT_STREAM, FileEntry, FileList, NDJSON, PROBLEM_JSON, WrittenFile};
use wakeful_model::Code;

use super::entry::{Entry, delete, flag, get, head, post, put, text};
use super::sandboxes::ACCESS;

const PATH: &str = "/v1/sandboxes/{id}/files/{path}";

/// What a look at a file gives: `?list` or `?stat`.
struct Looked;

impl PartialSchema for Looked {
    fn schema() -> utoipa::openapi::RefOr<Schema> {
        OneOfBuilder::new().item(Ref::from_schema_name("FileList")).item(Ref::from_schema_name("FileEntry")).into()
    }
}

impl ToSchema for Looked {
    fn name() -> std::borrow::Cow<'static, str> {
        "FileListOrEntry".into()
    }

    fn schemas(schemas: &mut Vec<(String, utoipa::openapi::RefOr<Schema>)>) {
        for (name, schema) in
            [(FileList::name(), FileList::schema()), (FileEntry::name(), <FileEntry as PartialSchema>::schema())]
        {
            schemas.push((name.into_owned(), schema));
        }
        FileList::schemas(schemas);
        FileEntry::schemas(schemas);
    }
}

pub(super) fn entries() -> Vec<Entry> {
    let refused = [Code::InvalidPath, Code::PathNotFound, Code::IsDirectory, Code::NotADirectory];
    let user = "Whom new files belong to, if not to the template's user";
    vec![
        get(PATH, "readFile", "Read a file, or look at what is there")
            .about("`Range` is honoured. With `list` or `stat` an answer in JSON; with `watch` a stream of changes.")
            .query("list", flag(), "The entries of a directory, by name")
            .query("stat", flag(), "One entry")
            .query("watch", flag(), "What happens there, one JSON object a line: see the schema `FileEvent`")
            .query("recursive", flag(), "With watch: also further down")
            .header("Range", text(), "Part of the file, as `bytes=0-99`")
            .header("If-Range", text(), "The `Last-Modified` that the part must still belong to; else the whole file")
            .answers::<Looked>(200, "The file, its entries, or its entry")
            .sends(200, "application/octet-stream", "")
            .sends(200, NDJSON, "")
            .sends(200, EVENT_STREAM, "")
            .sends(206, "application/octet-stream", "Part of the file")
            .sends(416, PROBLEM_JSON, "The file has no such part: `invalid_field`")
            .refuses(&refused)
            .refuses(&ACCESS),
        head(PATH, "describeFile", "Length and date of a file")
            .empty(200, "As the file would be sent")
            .refuses(&refused)
            .refuses(&ACCESS),
        put(PATH, "writeFile", "Write a file")
            .about("Parents are made; it is written beside and renamed, so that nobody reads half of it.")
            .query("mode", text().pattern(Some("^[0-7]{1,4}$")), "Permission bits in octal; 0644 if absent")
            .query("user", text().min_length(Some(1)).max_length(Some(256)), user)
            .bytes("The content")
            .answers::<WrittenFile>(200, "What was written")
            .refuses(&refused)
            .refuses(&ACCESS)
            .refuses(&[Code::UnknownUser, Code::FileTooLarge, Code::GuestDiskFull, Code::NameTaken]),
        post(PATH, "makeDirectoryOrMove", "Make a directory, or move a file")
            .query("mkdir", flag(), "Make a directory here, and its parents")
            .query("move_to", text(), "Move it there: an absolute path")
            .query("user", text().min_length(Some(1)).max_length(Some(256)), user)
            .answers::<FileEntry>(200, "It is there now, or was before")
            .answers::<FileEntry>(201, "The new directory")
            .refuses(&refused)
            .refuses(&ACCESS)
            .refuses(&[Code::MissingField, Code::UnknownUser, Code::GuestDiskFull, Code::NameTaken]),
        delete(PATH, "removeFile", "Remove a file or a whole directory")
            .empty(204, "It is not there, or no longer")
            .refuses(&refused)
            .refuses(&ACCESS),
    ]
}
