use wakeful_client::types::{CreateSandbox, CreateSnapshot, ForkRequest};

use crate::server::{Server, snapshot_of};

#[tokio::test]
async fn looks_and_deletes() {
    let server = Server::start().await;
    let (client, id) = (&server.client, snapshot_of(&server.gone));
    let all = client.snapshots().await.unwrap().snapshots;
    assert_eq!(all.iter().map(|snapshot| &snapshot.id).collect::<Vec<_>>(), [&id], "not those of other tenants");
    let one = client.snapshot(id.as_str()).await.unwrap();
    assert_eq!((&one, one.name.as_str(), one.template.as_str()), (&all[0], "before", "python"));
    assert_eq!((&one.sandbox_id, one.memory, one.own_bytes), (&server.gone, false, 0));
    assert_eq!(client.snapshot(id.bare()).await.unwrap(), one);
    for other in [snapshot_of(&server.theirs).as_str(), "snp_aaaaaaaaaaaaaaaaaaaa", "before", "snp_", "%2e%2e"] {
        assert_eq!(client.snapshot(other).await.unwrap_err().code(), Some("snapshot_not_found"), "{other}");
        assert_eq!(client.delete_snapshot(other).await.unwrap_err().code(), Some("snapshot_not_found"), "{other}");
    }
    client.delete_snapshot(id.as_str()).await.unwrap();
    assert_eq!(client.delete_snapshot(id.as_str()).await.unwrap_err().code(), Some("snapshot_not_found"));
    assert_eq!(client.snapshots().await.unwrap().snapshots, []);
}

#[tokio::test]
async fn what_is_gone_cannot_be_copied() {
    let server = Server::start().await;
    let (client, gone) = (&server.client, server.gone.as_str());
    let named = |name: &str| CreateSnapshot { name: Some(name.into()) };
    for new in [CreateSnapshot::default(), named("kept")] {
        assert_eq!(client.create_snapshot(gone, &new).await.unwrap_err().code(), Some("sandbox_destroyed"));
    }
    assert_eq!(client.create_snapshot(gone, &named("No Name")).await.unwrap_err().code(), Some("invalid_name"));
    assert_eq!(client.fork(gone, &ForkRequest::default()).await.unwrap_err().code(), Some("sandbox_destroyed"));
    let many = ForkRequest { count: Some(101), ..ForkRequest::default() };
    assert_eq!(client.fork(gone, &many).await.unwrap_err().code(), Some("invalid_field"));
    let nobody = "sbx_aaaaaaaaaaaaaaaaaaaa";
    assert_eq!(client.fork(nobody, &ForkRequest::default()).await.unwrap_err().code(), Some("sandbox_not_found"));
}

#[tokio::test]
async fn a_create_takes_snapshots_of_its_own_tenant() {
    let server = Server::start().await;
    let create = async |template: &str| {
        let new = CreateSandbox { template: template.into(), ..CreateSandbox::default() };
        server.client.create_sandbox(&new).await.unwrap_err().code().map(str::to_owned)
    };
    // No engine is usable here: it got as far as it can.
    assert_eq!(create(snapshot_of(&server.gone).as_str()).await.as_deref(), Some("runtime_unavailable"));
    for other in [snapshot_of(&server.theirs).as_str(), "snp_aaaaaaaaaaaaaaaaaaaa", "snp_"] {
        assert_eq!(create(other).await.as_deref(), Some("snapshot_not_found"), "{other}");
    }
}
