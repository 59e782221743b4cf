//! Tests of requests, commands and replies with the router, without a network connection.

use std::time::Duration;

use admin::view::{
    BackendRow, BgpView, EventKind, EventsView, HealthView, HistoryView, LogLevel, LogView, Status, VipRow,
};
use admin::{EventQuery, LogLevelOverride, Rules, router};
use axum::Router;
use axum::body::Body;
use axum::http::{Request, StatusCode};
use http_body_util::BodyExt;
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tower::ServiceExt;

use crate::document::Api;
use crate::mock;

#[tokio::test]
async fn every_query_returns_the_reply_of_the_loop() {
    let api = Api::new(false).await;
    let (status, body) = api.get("/v1/status").await;
    assert_eq!((status, api.last().as_str()), (StatusCode::OK, "Status"));
    assert_eq!(serde_json::from_value::<Status>(body.clone()).unwrap(), mock::status());
    assert_eq!(body["overrides"][0]["state"], "draining");
    let (_, body) = api.get("/v1/vips").await;
    assert_eq!(serde_json::from_value::<Vec<VipRow>>(body).unwrap()[0].name, "www");
    let (_, body) = api.get("/v1/backends").await;
    assert_eq!(body[1]["override"], json!({ "state": "draining", "weight": 3 }));
    assert_eq!(serde_json::from_value::<Vec<BackendRow>>(body).unwrap().len(), 2);
    let (_, body) = api.get("/v1/health").await;
    assert_eq!(serde_json::from_value::<HealthView>(body).unwrap().targets.len(), 2);
    let (_, body) = api.get("/v1/bgp").await;
    assert_eq!(serde_json::from_value::<BgpView>(body).unwrap(), mock::bgp());
    let (_, first) = api.get("/v1/counters").await;
    let (_, second) = api.get("/counters").await;
    assert_eq!((&first["total"]["rx"], &second["total"]["rx"]), (&json!(1000), &json!(2000)));
    assert_eq!(api.last(), "Stats");
}

#[tokio::test]
async fn events_are_filtered_by_kind_number_age_and_limit() {
    let api = Api::new(false).await;
    let (_, body) = api.get("/v1/events").await;
    assert_eq!(serde_json::from_value::<EventsView>(body).unwrap(), mock::events(&EventQuery::default()));
    assert_eq!(api.last(), format!("{:?}", EventQuery::default()));
    let (_, body) = api.get("/v1/events?kind=link,vip&after=6&since_seconds=60&limit=5").await;
    assert_eq!(body["events"].as_array().unwrap().len(), 1);
    let kinds = vec![EventKind::Link, EventKind::Vip];
    let query = EventQuery { kinds, after: 6, since: Some(Duration::from_secs(60)), limit: 5 };
    assert_eq!(api.last(), format!("{query:?}"));
}

#[tokio::test]
async fn log_level_is_read_set_and_reset() {
    let api = Api::new(false).await;
    let (_, body) = api.get("/v1/log/level").await;
    assert_eq!(serde_json::from_value::<LogView>(body).unwrap(), mock::log_level(None));
    assert_eq!(api.last(), "Log");
    let (status, change) = api.post("/v1/log/level?level=trace&for_seconds=60&reason=b2%20flaps", "").await;
    let order = LogLevelOverride {
        level: LogLevel::Trace,
        lasts: Duration::from_secs(60),
        by: "?".into(),
        reason: Some("b2 flaps".into()),
    };
    assert_eq!((status, api.last()), (StatusCode::OK, format!("{:?}", Some(order))));
    assert_eq!((&change["level_before"], &change["level"]), (&json!("debug"), &json!("trace")));
    let taken_back = Request::delete("/v1/log/level").body(Body::empty()).unwrap();
    let (status, change) = api.call(taken_back).await;
    assert_eq!(
        (status, api.last().as_str(), &change["level_override"]),
        (StatusCode::OK, "None", &Value::Null)
    );
}

#[tokio::test]
async fn vip_commands_have_a_reason_and_a_duration() {
    let api = Api::new(false).await;
    for (path, words) in [
        ("/v1/vips/www/announce", "Announce Some(\"www\") for None"),
        ("/v1/vips/announce?for_seconds=5", "Announce None for Some(5s)"),
        ("/v1/vips/www/withdraw?reason=x&for_seconds=60", "Withdraw Some(\"www\") for Some(60s)"),
    ] {
        assert_eq!((api.post(path, "").await.0, api.last().as_str()), (StatusCode::OK, words), "{path}");
    }
    for path in [
        "/v1/vips/www/withdraw",
        "/v1/vips/www/withdraw?reason=x",
        "/v1/vips/www/withdraw?for_seconds=60",
        "/v1/vips/www/withdraw?reason=x&for_seconds=0",
        "/v1/vips/www/announce?pool=x",
    ] {
        assert_eq!(api.post(path, "").await.0, StatusCode::BAD_REQUEST, "{path}");
    }
}

#[tokio::test]
async fn machine_command_succeeds_or_returns_an_error() {
    let api = Api::new(false).await;
    let (status, drain) = api.post("/v1/machine/drain", "").await;
    assert_eq!((status, api.last().as_str()), (StatusCode::OK, "Drain the machine"));
    assert_eq!((&drain["stage"], &drain["notice_seconds"]), (&json!("leaving"), &json!(5.0)));
    let (status, refusal) = api.post("/v1/machine/undrain", "").await;
    assert_eq!((status, &refusal["error"]), (StatusCode::CONFLICT, &json!("the machine is not draining")));
}

#[tokio::test]
async fn upgrade_returns_the_new_process_or_an_error() {
    let api = Api::new(false).await;
    let (status, upgraded) = api.post("/v1/machine/upgrade", "").await;
    assert_eq!((status, api.last().as_str()), (StatusCode::OK, "hand over to None"));
    assert_eq!((&upgraded["pid"], &upgraded["version"]), (&json!(4_711), &json!("0.2.0")));
    let (status, refusal) = api.post("/v1/machine/upgrade?binary=%2Fbin%2Ffalse", "").await;
    assert_eq!((status, api.last().as_str()), (StatusCode::CONFLICT, "hand over to Some(\"/bin/false\")"));
    assert_eq!(refusal["error"], "/bin/false exited with code 1");
    assert_eq!(api.post("/v1/machine/upgrade?program=x", "").await.0, StatusCode::BAD_REQUEST);
}

#[tokio::test]
async fn backend_command_has_name_pool_and_action() {
    let api = Api::new(false).await;
    for (path, body, asked) in [
        ("/v1/backends/b1/drain", "", "Drain b1 in None"),
        ("/v1/backends/b1/undrain?pool=web", "", "Undrain b1 in Some(\"web\")"),
        ("/v1/backends/b1/down", "null", "Down b1 in None"),
        ("/v1/backends/b1/up", " {}\n", "Up b1 in None"),
        ("/v1/backends/b1/weight", r#"{"weight": 5}"#, "Weight(Some(5)) b1 in None"),
        ("/v1/backends/b1/weight?pool=w%20b", r#"{"weight": null}"#, "Weight(None) b1 in Some(\"w b\")"),
    ] {
        let (status, change) = api.post(path, body).await;
        assert_eq!((status, api.last().as_str()), (StatusCode::OK, asked));
        assert_eq!(change["backend"], "b1");
    }
    let (status, refusal) = api.post("/v1/backends/b%2F9/drain", "").await;
    assert_eq!((status, &refusal["error"]), (StatusCode::NOT_FOUND, &json!("no backend b/9")));
    assert_eq!(api.post("/v1/backends/b2/undrain", "").await.0, StatusCode::CONFLICT);
    assert_eq!(
        api.post("/v1/backends/b1/weight", r#"{"weight": 1001}"#).await.0,
        StatusCode::UNPROCESSABLE_ENTITY
    );
}

#[tokio::test]
async fn invalid_requests_do_not_reach_the_loop() {
    let api = Api::new(true).await;
    for (path, body) in [
        ("/v1/backends/b1/weight", ""),
        ("/v1/backends/b1/weight", "{}"),
        ("/v1/backends/b1/weight", r#"{"weight": -1}"#),
        ("/v1/backends/b1/weight", r#"{"weight": 1, "pool": "web"}"#),
        ("/v1/backends/%ff/drain", ""),
        ("/v1/backends/b1/drain?pol=web", ""),
        ("/v1/backends/b1/drain", r#"{"pool": "web"}"#),
        ("/v1/backends/b1/down", "web"),
        ("/v1/backends/b1/down?then=down", ""),
        ("/v1/backends/b1/drain?then=up", ""),
        ("/v1/backends/b1/drain?after_seconds=5", ""),
        ("/v1/backends/b1/drain?then=down&after_seconds=0", ""),
        ("/v1/machine/drain", r#"{"after": "5s"}"#),
        ("/v1/reload", r#"{"config": ""}"#),
        ("/v1/reload?confirm_seconds=0", ""),
        ("/v1/reload?confirm_seconds=86401", ""),
        ("/v1/reload?confirm=5m", ""),
        ("/v1/config/rollback?generation=-1", ""),
        ("/v1/config/rollback?confirm_seconds=0", ""),
        ("/v1/config/confirm", r#"{"generation": 7}"#),
        ("/v1/log/level", ""),
        ("/v1/log/level?level=debug", ""),
        ("/v1/log/level?for_seconds=60", ""),
        ("/v1/log/level?level=all&for_seconds=60", ""),
        ("/v1/log/level?level=debug&for_seconds=0", ""),
        ("/v1/log/level?level=debug&for_seconds=2592001", ""),
        ("/v1/log/level?level=debug&for_seconds=60&reason=", ""),
        ("/v1/log/level?level=debug&for_seconds=60&reason=a%0Ab", ""),
        ("/v1/log/level?level=debug&for_seconds=60&pool=web", ""),
        ("/v1/log/level?level=debug&for_seconds=60", r#"{"reason": "x"}"#),
    ] {
        assert_eq!(api.post(path, body).await.0, StatusCode::BAD_REQUEST, "{path} {body}");
    }
    for path in [
        "/v1/flows?vip=www&backend=b1",
        "/v1/flows?limit=0",
        "/v1/flows?limit=10001",
        "/v1/flows?limit=x",
        "/v1/flows?color=red",
        "/v1/events?limit=0",
        "/v1/events?limit=1001",
        "/v1/events?kind=backend,colour",
        "/v1/events?kind=",
        "/v1/events?since_seconds=0",
        "/v1/events?after=-1",
        "/v1/events?before=7",
        "/v1/where?source=192.0.2.7:1&destination=203.0.113.10:80",
        "/v1/where?source=192.0.2.7:1&destination=203.0.113.10:80&protocol=256",
        "/v1/where?source=192.0.2.7:1&destination=[2001:db8::1]:80&protocol=tcp",
        "/v1/where?source=192.0.2.7&destination=203.0.113.10:80&protocol=tcp",
    ] {
        assert_eq!(api.get(path).await.0, StatusCode::BAD_REQUEST, "{path}");
    }
    for path in ["/v1/flows", "/v1/flows?limit=5&all=true", "/v1/flows?all=true&vip=www"] {
        let request = Request::delete(path).body(Body::empty()).unwrap();
        assert_eq!(api.call(request).await.0, StatusCode::BAD_REQUEST, "{path}");
    }
    let request = Request::delete("/v1/flows?all=true").body(Body::from(r#"{"vip": "www"}"#)).unwrap();
    assert_eq!(api.call(request).await.0, StatusCode::BAD_REQUEST);
    assert_eq!(*api.log.lock().unwrap(), Vec::<String>::new());
}

#[tokio::test]
async fn flows_are_listed_and_purged_by_filter() {
    let api = Api::new(false).await;
    for (path, asked) in [
        ("/v1/flows", "list All up to 100"),
        ("/v1/flows?vip=www&limit=1", "list Vip(\"www\") up to 1"),
        ("/v1/flows?backend=b1", "list Backend(\"b1\") up to 100"),
    ] {
        let (status, page) = api.get(path).await;
        assert_eq!((status, api.last().as_str()), (StatusCode::OK, asked));
        assert_eq!(page["more"], json!(path.contains("limit=1")));
    }
    assert_eq!(api.get("/v1/flows?vip=nowhere").await.0, StatusCode::NOT_FOUND);
    for (path, asked) in [
        ("/v1/flows?all=true", "purge All"),
        ("/v1/flows?vip=www", "purge Vip(\"www\")"),
        ("/v1/flows?backend=b1", "purge Backend(\"b1\")"),
    ] {
        let request = Request::delete(path).body(Body::empty()).unwrap();
        let (status, purged) = api.call(request).await;
        assert_eq!((status, api.last().as_str()), (StatusCode::OK, asked));
        assert_eq!(purged, json!({ "flows": 7 }));
    }
}

#[tokio::test]
async fn hot_keys_parameters_are_checked() {
    let api = Api::new(false).await;
    let (status, view) = api.post("/v1/kv/top", "").await;
    assert_eq!(
        (status, &view["keys"][1]["key"], &view["seconds"]),
        (StatusCode::OK, &json!("\\xff"), &json!(2.0))
    );
    assert_eq!(api.last(), "20 hot keys of None in 2s");
    assert_eq!(api.post("/v1/kv/top?vip=users&limit=1000&seconds=20", "").await.0, StatusCode::OK);
    assert_eq!(api.last(), "1000 hot keys of Some(\"users\") in 20s");
    assert_eq!(api.post("/v1/kv/top?vip=www", "").await.0, StatusCode::NOT_FOUND);
    for (query, words) in [
        ("limit=0", "limit=0 is out of range, use 1 to 1000"),
        ("limit=1001", "limit=1001 is out of range, use 1 to 1000"),
        ("seconds=0", "seconds=0 is out of range, use 1 to 20"),
        ("seconds=21", "seconds=21 is out of range, use 1 to 20"),
        ("for=2s", "unknown field"),
    ] {
        let path = format!("/v1/kv/top?{query}");
        let (status, refusal) = api.post(&path, "").await;
        assert_eq!(status, StatusCode::BAD_REQUEST, "{query}");
        assert!(refusal["error"].as_str().unwrap().contains(words), "{query}: {refusal}");
    }
}

#[tokio::test]
async fn where_passes_addresses_protocol_and_key() {
    let api = Api::new(false).await;
    for (protocol, number) in [("tcp", 6), ("udp", 17), ("47", 47)] {
        let path = format!(
            "/v1/where?source=[2001:db8::7]:40000&destination=[2001:db8:f::10]:80&protocol={protocol}"
        );
        let (status, view) = api.get(&path).await;
        assert_eq!((status, &view["threads"][0]["backend"]["name"]), (StatusCode::OK, &json!("b1")));
        assert_eq!(api.last(), format!("where [2001:db8::7]:40000 [2001:db8:f::10]:80 {number}"));
    }
    let path = "/v1/where?source=192.0.2.7:4000&destination=203.0.113.10:11211&protocol=udp&key=a%20%26b";
    assert_eq!(api.get(path).await.0, StatusCode::OK);
    assert_eq!(api.last(), "where 192.0.2.7:4000 203.0.113.10:11211 17 key \"a &b\"");
}

fn put(if_match: Option<&str>, text: &'static str) -> Request<Body> {
    let request = Request::put("/v1/config");
    let request = if let Some(tag) = if_match { request.header("If-Match", tag) } else { request };
    request.body(Body::from(text)).unwrap()
}

#[tokio::test]
async fn put_requires_the_current_entity_tag() {
    let api = Api::new(true).await;
    let response = api.get("/v1/config").await.1;
    assert_eq!(response["etag"], "b00t-7");
    let quoted = "\"b00t-7\"";
    let (status, report) = api.call(put(Some(quoted), "schema = 1")).await;
    assert_eq!((status, &report["generation"]), (StatusCode::OK, &json!(8)));
    assert_eq!(api.last(), "put \"schema = 1\" onto Some(\"b00t-7\")");
    assert_eq!(api.call(put(Some("*"), "")).await.0, StatusCode::OK);
    assert_eq!(api.last(), "put \"\" onto None");
    let (status, refusal) = api.call(put(Some(quoted), "wrong")).await;
    assert_eq!((status, &refusal["problems"][0]["line"]), (StatusCode::UNPROCESSABLE_ENTITY, &json!(1)));
    assert_eq!(api.call(put(Some("\"b00t-6\""), "")).await.0, StatusCode::PRECONDITION_FAILED);
    let asked = api.log.lock().unwrap().len();
    assert_eq!(api.call(put(None, "")).await.0, StatusCode::PRECONDITION_REQUIRED);
    for wrong in ["b00t-7", "\"a\", \"b\"", "W/\"b00t-7\"", "\""] {
        assert_eq!(api.call(put(Some(wrong), "")).await.0, StatusCode::BAD_REQUEST, "{wrong}");
    }
    let not_text = Request::put("/v1/config").header("If-Match", "*").body(Body::from(&b"\xff"[..])).unwrap();
    assert_eq!(api.call(not_text).await.0, StatusCode::BAD_REQUEST);
    assert_eq!(api.log.lock().unwrap().len(), asked, "rejected requests do not reach the loop");
}

#[tokio::test]
async fn reload_put_and_rollback_accept_conditions() {
    let api = Api::new(true).await;
    let (_, report) = api.post("/v1/reload", "").await;
    assert_eq!((api.last().as_str(), &report["confirmation"]), ("Reload", &Value::Null));
    let (_, report) = api.post("/v1/reload?confirm_seconds=300&force=true", "").await;
    assert_eq!(api.last(), "Reload, to be confirmed in 300s, by force");
    assert_eq!(report["confirmation"], json!({ "generation": 8, "returns_to": 7, "ends_in_seconds": 300.0 }));
    let put =
        Request::put("/v1/config?confirm_seconds=1").header("If-Match", "*").body(Body::from("a")).unwrap();
    assert_eq!(api.call(put).await.0, StatusCode::OK);
    assert_eq!(api.last(), "put \"a\" onto None, to be confirmed in 1s");
    let (status, confirmed) = api.post("/v1/config/confirm", "").await;
    assert_eq!(
        (status, api.last().as_str(), &confirmed["generation"]),
        (StatusCode::OK, "Confirm", &json!(7))
    );
    assert_eq!(api.post("/v1/config/rollback", "").await.0, StatusCode::OK);
    assert_eq!(api.last(), "go back to None");
    let (status, _) = api.post("/v1/config/rollback?generation=5&force=true&confirm_seconds=60", "").await;
    assert_eq!(api.last(), "go back to Some(5), to be confirmed in 60s, by force");
    assert_eq!(status, StatusCode::OK);
    assert_eq!(api.post("/v1/config/rollback?generation=4", "").await.0, StatusCode::NOT_FOUND);
}

#[tokio::test]
async fn stored_generations_are_listed_with_their_files() {
    let api = Api::new(false).await;
    let (_, history) = api.get("/v1/config/history").await;
    assert_eq!(serde_json::from_value::<HistoryView>(history).unwrap(), mock::history());
    assert_eq!(api.last(), "History");
    let (_, one) = api.get("/v1/config/history/6").await;
    assert_eq!((api.last().as_str(), &one["generation"]["cause"]), ("generation 6", &json!("put")));
    assert_eq!(one["files"][0]["text"], "schema = 1\n");
    assert_eq!(api.get("/v1/config/history/4").await.0, StatusCode::NOT_FOUND);
    assert_eq!(api.get("/v1/config/history/last").await.0, StatusCode::BAD_REQUEST);
}

#[tokio::test]
async fn put_is_rejected_unless_enabled() {
    let api = Api::new(false).await;
    assert_eq!(api.call(put(Some("*"), "schema = 1")).await.0, StatusCode::FORBIDDEN);
    assert_eq!(api.last(), "");
}

#[tokio::test]
async fn config_response_has_an_etag_header() {
    let (commands, _) = mock::start();
    let request = Request::get("/v1/config").body(Body::empty()).unwrap();
    let response = router(commands, Rules::default(), Router::new()).oneshot(request).await.unwrap();
    assert_eq!(response.headers()["etag"], "\"b00t-7\"");
}

#[tokio::test]
async fn body_size_is_limited_by_route() {
    let api = Api::new(true).await;
    let post = |size| Request::post("/v1/reload").body(Body::from(vec![b' '; size])).unwrap();
    assert_eq!(api.call(post(64 << 10)).await.0, StatusCode::OK);
    assert_eq!(api.call(post((64 << 10) + 1)).await.0, StatusCode::PAYLOAD_TOO_LARGE);
    let put = |size| {
        let body = Body::from(vec![b'#'; size]);
        Request::put("/v1/config").header("If-Match", "*").body(body).unwrap()
    };
    assert_eq!(api.call(put(16 << 20)).await.0, StatusCode::OK);
    assert_eq!(api.call(put((16 << 20) + 1)).await.0, StatusCode::PAYLOAD_TOO_LARGE);
}

#[tokio::test]
async fn cross_site_requests_are_rejected() {
    let api = Api::new(false).await;
    let from = |origin| {
        let request = Request::post("/v1/reload").header("Host", "lb1.example:9851");
        request.header("Origin", origin).body(Body::empty()).unwrap()
    };
    assert_eq!(api.call(from("https://lb1.example:9851")).await.0, StatusCode::OK);
    for origin in ["https://elsewhere.example", "null", "https://lb1.example"] {
        assert_eq!(api.call(from(origin)).await.0, StatusCode::FORBIDDEN, "{origin}");
    }
}

#[tokio::test]
async fn unknown_paths_and_methods_return_json_errors() {
    let (commands, _) = mock::start();
    let more = Router::new().route("/more", axum::routing::get(async || "more"));
    let router = router(commands, Rules::default(), more);
    for (request, status) in [
        (Request::get("/v2/status"), StatusCode::NOT_FOUND),
        (Request::get("/v1/status/"), StatusCode::NOT_FOUND),
        (Request::post("/v1/status"), StatusCode::METHOD_NOT_ALLOWED),
        (Request::get("/v1/reload"), StatusCode::METHOD_NOT_ALLOWED),
        (Request::post("/more"), StatusCode::METHOD_NOT_ALLOWED),
    ] {
        let response = router.clone().oneshot(request.body(Body::empty()).unwrap()).await.unwrap();
        assert_eq!(response.status(), status);
        let body = response.into_body().collect().await.unwrap().to_bytes();
        let refusal: serde_json::Value = serde_json::from_slice(&body).unwrap();
        assert!(refusal["kind"] == "bad_request" || refusal["kind"] == "not_found", "{refusal}");
    }
    let request = Request::get("/more").body(Body::empty()).unwrap();
    assert_eq!(router.oneshot(request).await.unwrap().status(), StatusCode::OK);
}

#[tokio::test]
async fn a_dropped_command_returns_status_503() {
    let (commands, mut received) = mpsc::channel(1);
    let router = router(commands, Rules::default(), Router::new());
    let ask = || router.clone().oneshot(Request::get("/v1/status").body(Body::empty()).unwrap());
    let (response, _) = tokio::join!(ask(), async { received.recv().await.map(drop) });
    assert_eq!(response.unwrap().status(), StatusCode::SERVICE_UNAVAILABLE);
    drop(received);
    assert_eq!(ask().await.unwrap().status(), StatusCode::SERVICE_UNAVAILABLE);
}

#[tokio::test(start_paused = true)]
async fn a_missing_reply_returns_status_503_in_time() {
    let (commands, _unanswered) = mpsc::channel(1);
    let router = router(commands, Rules::default(), Router::new());
    for _ in 0..3 {
        let request = Request::post("/v1/reload").body(Body::empty()).unwrap();
        let response = router.clone().oneshot(request).await.unwrap();
        assert_eq!(response.status(), StatusCode::SERVICE_UNAVAILABLE);
    }
}
