//! `leasehold serve`, and what it answers to the clients of a store.

#[cfg(test)]
use leasehold::messages::Catalogue;
use leasehold::{explanations, notes};

use super::failures;

#[cfg(test)]
pub const CATALOGUE: Catalogue = Catalogue {
    name: "serve",
    about: "`leasehold serve`. Lines from `bearer_needed` to `failed_see_log` are answers to clients over HTTP.",
    entries: &[NOTES, FAILURES, EXPLANATIONS],
};

notes! {
    serving(store, address) "serving {store} at http://{address}";
    dashboard(store, address) "dashboard of {store} at http://{address} (it only shows, and changes nothing)";
    shown_to_all() "without --tokens, everybody on this machine may look";
    open_to_all() "without --tokens, everybody on this machine may use it";
    plain_http()
        "the connection is not encrypted: put a proxy with TLS in front, or others on the network can read the tokens";
    stopped() "stopped serving";
    write_refused(key, why) "refused a write to {key}: {why}";
    store_failed(why) "the store failed: {why}";

    /// Of the file of tokens.
    not_a_token_line() "a line must have a token, then a name prefix or *, then perhaps the word admin";
    short_token(least) "a token must have at least {least} characters";
    token_twice() "this token is in the file twice";
    no_token() "there is no token in this file";

    bearer_needed() "a bearer token is needed";
    bearer_unknown() "the bearer token is unknown";
    outside_prefix() "this bearer may only use names that begin with its prefix";
    list_too_wide() "this bearer may not list all kinds of keys at once";
    no_such_path() "the only paths are /v1/k/KEY and /v1/list";
    no_such_method() "the methods for a key are GET, PUT and DELETE";
    no_such_key() "there is no such key";
    zero_byte() "a key cannot contain a zero byte";
    long_key(most) "a key can have at most {most} bytes";
    long_body(most) "a body can have at most {most} bytes";
    short_body() "the body ended early";
    bad_encoding() "this is not percent-encoded UTF-8";
    no_condition() "name the version to replace with If-Match, or send If-None-Match: * for a new key";
    other_version() "the key does not have that version";
    bad_write_id() "Leasehold-Write-Id must be 32 lower-case hexadecimal digits";
    lease_stays() "only an admin bearer may remove lease records, and forgotten-records are never removed";
    late() "the store did not answer in time";
    too_many() "too many requests are waiting for the store";
    failed() "the store failed";
    failed_see_log() "the store behind this server failed; its log says why";
}

failures! {
    tokens_needed(address) Config "config"
        { "without --tokens anybody who reaches {address} could rewrite every lease" "Nothing was started"
          "Write a file of tokens and name it with --tokens, or listen on a loopback address" }
    tokens_needed_to_look(address) Config "config"
        { "without --tokens anybody who reaches {address} could see every job and its output" "Nothing was started"
          "Write a file of tokens and name it with --tokens, or listen on a loopback address" }
    readable_tokens(path, quoted) Denied "denied"
        { "{path} (--tokens) can be read by other users" "Nothing was started" "Run: chmod 600 {quoted}" }
    bad_tokens(path, line, why) Config "config" { "{path}:{line}: {why}" "Nothing was started" "" }
    no_thread(why) Unreachable "serve" { "cannot start a thread: {why}" "Nothing was started" "" }
    system(why) Unreachable "serve" { "the system refused a resource that the server needs: {why}" "" "" }
}

explanations! {
    unread_tokens(path, why) { "cannot read {path} (--tokens): {why}" "Nothing was started" "" }
    cannot_listen(address, why)
        { "cannot listen on {address}: {why}" "Nothing was started" "Choose another address with --listen" }
}
