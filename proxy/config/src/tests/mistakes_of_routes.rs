//! Mistakes in routes and clusters, with their lines, paths and messages.

use super::mistakes::one;
use crate::parse;

const ROUTES: &[(&str, &str)] = &[
    (
        "{respond: {template: a, content_type: text/javascript}}",
        "5: routes[0].respond: values of clients cannot be escaped in code; write body, or a template of JSON",
    ),
    (
        "{path_regex: '^(.*)$', redirect: {location: 'https://{host}{group:1}'}}",
        "5: routes[0].redirect.location: \"https://{host}{group:1}\" takes a part of its host from the client; write a / before the variable, or only {host}",
    ),
    (
        "{path_regex: '^(.*)$', redirect: {location: 'https://a.example{group:1}'}}",
        "5: routes[0].redirect.location: \"https://a.example{group:1}\" takes a part of its host from the client; write a / before the variable, or only {host}",
    ),
    (
        "{redirect: {location: 'https://a.{header:x}/b'}}",
        "5: routes[0].redirect.location: \"https://a.{header:x}/b\" takes a part of its host from the client; write a / before the variable, or only {host}",
    ),
    (
        "{redirect: {location: '{scheme}://a{cookie:x}'}}",
        "5: routes[0].redirect.location: \"{scheme}://a{cookie:x}\" takes a part of its host from the client; write a / before the variable, or only {host}",
    ),
    (
        "{redirect: {location: 'https:{path}'}}",
        "5: routes[0].redirect.location: \"https:{path}\" has no // behind its scheme; write https://",
    ),
    (
        "{redirect: {location: '{scheme}:{path}'}}",
        "5: routes[0].redirect.location: \"{scheme}:{path}\" has no // behind its scheme; write https://",
    ),
    (
        "{cluster: api, cors: {}}",
        "5: routes[0].cors: origins is missing; write sites such as https://app.example.com",
    ),
    (
        "{cluster: api, cors: {origins: ['null']}}",
        "5: routes[0].cors.origins[0]: \"null\" is not an origin; write https://host, https://*.host, with a port if it is not the usual one, or \"*\"",
    ),
    (
        "{cluster: api, cors: {origins: ['*'], credentials: true}}",
        "5: routes[0].cors.credentials: any site could then act for whoever is logged in; name the origins, or remove credentials",
    ),
    (
        "{cluster: api, error_pages_for: [200]}",
        "5: routes[0].error_pages_for[0]: 200 is a number; write a status from 400 to 599 or a range such as \"502-504\"",
    ),
    (
        "{respond: {body: a, template: b}}",
        "5: routes[0].respond: body and template exclude each other; keep one",
    ),
    (
        "{path_regex: '^/(.)', redirect: {location: '/{group:2}'}}",
        "5: routes[0].redirect.location: {group:2} is not a group of path_regex: it has 1",
    ),
    (
        "{cluster: api, request_headers: {set: {x-a: '{group:id}'}}}",
        "5: routes[0].request_headers: {group:id} is not a group of path_regex: the route has no path_regex",
    ),
    (
        "{cluster: api, access: {deny_files: []}}",
        "5: routes[0].access.deny_files: the list is empty; fill it or remove the key",
    ),
    ("{name: a}", "5: routes[0]: no action; write cluster, redirect, respond or files"),
    ("{cluster: api, respond: {}}", "5: routes[0]: cluster and respond exclude each other; keep one"),
    ("{files: {root: /a}, respond: {}}", "5: routes[0]: files and respond exclude each other; keep one"),
    ("{files: {}}", "5: routes[0].files: root is missing; write the path of a folder"),
    (
        "{files: {root: /a, try_paths: ['a.html']}}",
        "5: routes[0].files.try_paths[0]: \"a.html\" does not begin with / or {path}; write one of them first",
    ),
    (
        "{files: {root: /a, try_paths: ['{path}{query}']}}",
        "5: routes[0].files.try_paths[0]: \"{path}{query}\" has another variable than one {path}; remove it",
    ),
    (
        "{files: {root: /a, try_paths: ['{path}/../b']}}",
        "5: routes[0].files.try_paths[0]: \"{path}/../b\" has a dot segment or a hidden name; write another name",
    ),
    (
        "{files: {root: /a, try_paths: []}}",
        "5: routes[0].files.try_paths: the list is empty; write names, or remove it for {path}",
    ),
    (
        "{files: {root: /a, index: a/b}}",
        "5: routes[0].files.index: \"a/b\" is not the name of a visible file; write one such as index.html",
    ),
    (
        "{files: {root: /a, precompressed: [br, br]}}",
        "5: routes[0].files.precompressed[1]: br is listed before; remove one",
    ),
    (
        "{files: {root: /a, precompressed: [bzip2]}}",
        "5: routes[0].files.precompressed[0]: \"bzip2\" is not known; write br, zstd or gzip",
    ),
    (
        "{files: {root: /a, cache_control: [{path_regex: '(', value: no-cache}]}}",
        "5: routes[0].files.cache_control[0].path_regex: \"(\" is not a regular expression: unclosed group",
    ),
    (
        "{files: {root: /a, cache_control: [{}]}}",
        "5: routes[0].files.cache_control[0]: value is missing; write a value such as public, max-age=3600",
    ),
    ("{cluster: api, sendfile: {}}", "5: routes[0].sendfile: no folders; write roots, accel or both"),
    (
        "{cluster: api, sendfile: {roots: [storage]}}",
        "5: routes[0].sendfile.roots: \"storage\" does not begin with /; write the whole path",
    ),
    (
        "{cluster: api, sendfile: {accel: {protected: /a}}}",
        "5: routes[0].sendfile.accel.protected: \"protected\" does not begin with /; write /protected",
    ),
    (
        "{cluster: api, sendfile: {accel: {/p/../q: /a}}}",
        "5: routes[0].sendfile.accel.\"/p/../q\": \"/p/../q\" has a dot segment; write the path that it means",
    ),
    (
        "{respond: {}, sendfile: {roots: [/a]}}",
        "5: routes[0].sendfile: this has no effect on a route without a cluster; remove it",
    ),
    (
        "{cluster: api, compress: {algorithms: [gzip, gzip]}}",
        "5: routes[0].compress.algorithms[1]: gzip is listed before; remove one",
    ),
    (
        "{cluster: api, compress: {algorithms: []}}",
        "5: routes[0].compress.algorithms: the list is empty; write zstd, br or gzip, or remove compress",
    ),
    (
        "{cluster: api, compress: {types: [html]}}",
        "5: routes[0].compress.types[0]: \"html\" is not a media type; write one such as text/html or text/*",
    ),
    (
        "{respond: {}, compress: {}}",
        "5: routes[0].compress: this has no effect on a route without a cluster; remove it",
    ),
    (
        "{cluster: api, cache: pages}",
        "5: routes[0].cache: no cache is named \"pages\"; write the name of one under caches",
    ),
    ("{cluster: ap}", "5: routes[0].cluster: no cluster is named \"ap\"; did you mean api?"),
    (
        "{cluster: api, hosts: ['a.b:80']}",
        "5: routes[0].hosts[0]: \"a.b:80\" has a port; hosts match without it, remove it",
    ),
    (
        "{cluster: api, hosts: ['a.*.b']}",
        "5: routes[0].hosts[0]: \"a.*.b\" has a * that is not the first label; write *.example.com",
    ),
    ("{cluster: api, hosts: a.b}", "5: routes[0].hosts: \"a.b\" is text; write a list"),
    (
        "{cluster: api, path_prefix: api}",
        "5: routes[0].path_prefix: \"api\" does not begin with /; write /api",
    ),
    ("{cluster: api, methods: [get]}", "5: routes[0].methods[0]: \"get\" would match no request; write GET"),
    (
        "{cluster: api, path: /a, path_regex: b}",
        "5: routes[0]: path and path_regex exclude each other; keep one",
    ),
    ("{cluster: api, path: '/a?b'}", "5: routes[0].path: \"/a?b\" has a query or fragment; remove it"),
    (
        "{cluster: api, path_regex: '(a'}",
        "5: routes[0].path_regex: \"(a\" is not a regular expression: unclosed group",
    ),
    (
        "{cluster: api, path_regex: 'a{1000}{1000}{1000}'}",
        "5: routes[0].path_regex: \"a{1000}{1000}{1000}\" is not a regular expression: \
         Compiled regex exceeds size limit of 33554432 bytes.",
    ),
    (
        "{cluster: api, client: [10.0.0.0/33]}",
        "5: routes[0].client[0]: \"10.0.0.0/33\" is text; write an address or a network such as 10.0.0.0/8",
    ),
    (
        "{cluster: api, query: [{value: a}]}",
        "5: routes[0].query[0]: name is missing; write the name of a parameter",
    ),
    (
        "{cluster: api, not: {hosts: [a]}}",
        "5: routes[0].not.hosts: unknown key; known here: path, path_prefix, \
         path_regex, listeners, methods, headers, query, client",
    ),
    (
        "{cluster: api, not: {listeners: [mian]}}",
        "5: routes[0].not.listeners[0]: no listener is named \"mian\"; write the name of one under listeners",
    ),
    (
        "{cluster: api, headers: [{value: a}]}",
        "5: routes[0].headers[0]: name is missing; write the name of a field",
    ),
    (
        "{cluster: api, headers: [{name: 'a b'}]}",
        "5: routes[0].headers[0].name: \"a b\" is not a field name; write letters, digits and hyphens",
    ),
    (
        "{cluster: api, headers: [{name: a, value: 1}]}",
        "5: routes[0].headers[0].value: 1 is a number; write text, in quotes",
    ),
    (
        "{cluster: api, strip_prefix: true}",
        "5: routes[0].strip_prefix: path_prefix is missing; write the prefix to strip",
    ),
    (
        "{cluster: api, host_rewrite: a/b}",
        "5: routes[0].host_rewrite: \"a/b\" is not a host; write example.com or example.com:8080",
    ),
    (
        "{cluster: api, request_headers: {set: {Host: a}}}",
        "5: routes[0].request_headers.set.Host: \"Host\" cannot be changed here; write host_rewrite",
    ),
    (
        "{cluster: api, request_headers: {add: {X: \"a\\nb\"}}}",
        "5: routes[0].request_headers.add.X: \"a\\nb\" has a control or non-ASCII character; remove it",
    ),
    (
        "{cluster: api, request_headers: {set: {X-Real-IP: '{clientip}'}}}",
        "5: routes[0].request_headers.set.X-Real-IP: \"{clientip}\" has an unknown variable, {clientip}; did you mean \
         {client_ip}?",
    ),
    (
        "{cluster: api, rewrite: '/v2/$1'}",
        "5: routes[0].rewrite: \"/v2/$1\" has a $ without path_regex; write $$ for a dollar sign",
    ),
    (
        "{cluster: api, rewrite: /a, add_prefix: /b}",
        "5: routes[0].rewrite: the template is the whole path; remove strip_prefix and add_prefix",
    ),
    ("{cluster: api, add_prefix: /b/}", "5: routes[0].add_prefix: \"/b/\" ends with /; write it without"),
    (
        "{cluster: api, access: {allow: , deny: [10.0.0.1]}}",
        "5: routes[0].access.allow: found no value; write networks such as 10.0.0.0/8 or remove the key",
    ),
    (
        "{cluster: api, access: }",
        "5: routes[0].access: found no value; write allow, deny or both or remove the key",
    ),
    ("{cluster: api, access: {}}", "5: routes[0].access: no clients; write allow, deny or both"),
    (
        "{cluster: api, access: {allow: []}}",
        "5: routes[0].access.allow: the list is empty; fill it or remove the key",
    ),
    (
        "{cluster: api, rate_limits: [login]}",
        "5: routes[0].rate_limits[0]: no rate limit is named \"login\"; write the name of one under rate_limits",
    ),
    (
        "{cluster: api, auth: }",
        "5: routes[0].auth: found no value; write basic, forward, jwt or certificate or remove the key",
    ),
    (
        "{cluster: api, auth: {}}",
        "5: routes[0].auth: expected exactly one key; write basic, forward, jwt or certificate",
    ),
    (
        "{cluster: api, auth: {basic: {}}}",
        "5: routes[0].auth.basic: file is missing; write a file that htpasswd -B writes",
    ),
    (
        "{cluster: api, auth: {basic: {file: /a, realm: 'a\"b'}}}",
        "5: routes[0].auth.basic.realm: \"a\\\"b\" is not a realm; write up to 200 characters without quotes and \
         backslashes",
    ),
    ("{cluster: api, auth: {jwt: {}}}", "5: routes[0].auth.jwt: no keys; write jwks_url or keys_file"),
    (
        "{cluster: api, auth: {jwt: {jwks_url: 'http://a', keys_file: /a, audience: [a]}}}",
        "5: routes[0].auth.jwt: jwks_url and keys_file exclude each other; keep one",
    ),
    (
        "{cluster: api, auth: {jwt: {jwks_url: 'http://a'}}}",
        "5: routes[0].auth.jwt.audience: none is given, so a token that the issuer made for another application would \
         pass; write the name of this one",
    ),
    (
        "{cluster: api, auth: {jwt: {keys_file: /a, algorithms: [RS256, HS256]}}}",
        "5: routes[0].auth.jwt.algorithms: those with a secret exclude the others; keep HS256 and the like, or the \
         others",
    ),
    (
        "{cluster: api, auth: {jwt: {jwks_url: 'http://a', audience: [a], algorithms: [HS256]}}}",
        "5: routes[0].auth.jwt.algorithms: a secret is not published by a URL; write keys_file in place of jwks_url",
    ),
    (
        "{cluster: api, auth: {jwt: {keys_file: /a, algorithms: []}}}",
        "5: routes[0].auth.jwt.algorithms: the list is empty; write what tokens are signed with, such as RS256",
    ),
    (
        "{cluster: api, auth: {jwt: {keys_file: /a, algorithms: [none]}}}",
        "5: routes[0].auth.jwt.algorithms[0]: \"none\" is not known; write RS256, RS384, RS512, PS256, PS384, PS512, \
         ES256, ES384, EdDSA, HS256, HS384 or HS512",
    ),
    (
        "{cluster: api, auth: {jwt: {keys_file: /a, claims_to_headers: {sub: Host}}}}",
        "5: routes[0].auth.jwt.claims_to_headers.sub: \"Host\" cannot be changed here; write host_rewrite",
    ),
    (
        "{cluster: api, auth: {jwt: {keys_file: /a, claims_to_headers: {a: X-A, b: x-a}}}}",
        "5: routes[0].auth.jwt.claims_to_headers.b: \"x-a\" has the value of another claim as well; write another field",
    ),
    (
        "{cluster: api, auth: {certificate: {}}}",
        "5: routes[0].auth.certificate: no listener asks clients for certificates; write tls.client_auth for one",
    ),
    (
        "{cluster: api, auth: {forward: {url: 'ftp://a'}}}",
        "5: routes[0].auth.forward.url: \"ftp://a\" is not a URL; write http://host:port/path",
    ),
    (
        "{cluster: api, auth: {forward: {url: 'http://a', copy: [Host]}}}",
        "5: routes[0].auth.forward.copy[0]: \"Host\" cannot be changed here; write host_rewrite",
    ),
    (
        "{cluster: api, rate_limits: }",
        "5: routes[0].rate_limits: found no value; write names of limits or remove the key",
    ),
    (
        "{cluster: api, response_headers: {remove: [Upgrade]}}",
        "5: routes[0].response_headers.remove[0]: \"Upgrade\" cannot be changed: sluice frames messages \
         itself; remove it",
    ),
    (
        "{cluster: api, response_timeout_ms: 0}",
        "5: routes[0].response_timeout_ms: 0 is out of range; write milliseconds from 1 to 86400000",
    ),
    (
        "{cluster: api, retry: {attempts_max: 11}}",
        "5: routes[0].retry.attempts_max: 11 is out of range; write a whole number from 0 to 10",
    ),
    (
        "{cluster: api, retry: {statuses: [404]}}",
        "5: routes[0].retry.statuses[0]: 404 is a number; write a status from 500 to 599 or a range such as \"502-504\"",
    ),
    (
        "{redirect: {}}",
        "5: routes[0].redirect: location is missing; write where to, such as https://{host}{path}{query}",
    ),
    (
        "{redirect: {status: 200, location: /a}}",
        "5: routes[0].redirect.status: 200 is a number; write 301, 302, 303, 307 or 308",
    ),
    (
        "{redirect: {location: '/{pat}'}}",
        "5: routes[0].redirect.location: \"/{pat}\" has an unknown variable, {pat}; did you mean {path}?",
    ),
    (
        "{redirect: {location: 'https://{header:x-host}/'}}",
        "5: routes[0].redirect.location: \"https://{header:x-host}/\" takes its host from the client; write a host or \
         {host}",
    ),
    (
        "{respond: {status: 101}}",
        "5: routes[0].respond.status: 101 is out of range; write a whole number from 200 to 599",
    ),
    ("{respond: {status: 204, body: a}}", "5: routes[0].respond: a 204 response has no body; remove body"),
    (
        "{respond: {}, retry: {}}",
        "5: routes[0].retry: this has no effect on a route without a cluster; remove it",
    ),
    (
        "{respond: {}, body_idle_timeout: 1h}",
        "5: routes[0].body_idle_timeout: this has no effect on a route without a cluster; remove it",
    ),
    (
        "{respond: {}, buffer_responses: on}",
        "5: routes[0].buffer_responses: this has no effect on a route without a cluster; remove it",
    ),
    (
        "{cluster: api, buffer_memory_bytes: -1}",
        "5: routes[0].buffer_memory_bytes: -1 is out of range; write bytes from 0 to 1073741824",
    ),
    (
        "{cluster: api, buffer_requests: maybe}",
        "5: routes[0].buffer_requests: \"maybe\" is not known; write off or on",
    ),
    (
        "{cluster: api, name: a}\n - {respond: {}, name: a}",
        "6: routes[1].name: \"a\" is also the name of routes[0]; write another name",
    ),
];

#[test]
fn mistakes_in_route_keys() {
    for (given, expected) in ROUTES {
        assert_eq!(one(&format!("routes:\n - {given}")), format!("c.yaml:{expected}"), "{given}");
    }
    assert_eq!(
        one("  b: {endpoints: ['a:1']}\n"),
        "c.yaml: routes: routes is missing; with more than one cluster, write which request goes where"
    );
}

#[test]
fn mistakes_in_certificates_of_clients() {
    for (given, expected) in [
        ("subjects: []", "subjects: the list is empty; fill it or remove the key"),
        ("fingerprints: [ab]", "fingerprints[0]: \"ab\" is not a SHA-256; write 64 hexadecimal digits"),
    ] {
        let text = format!(
            "listeners: [{{tls: {{certificates: [{{cert: /c, key: /k}}], client_auth: {{mode: required, ca_file: /c}}}}}}]\n\
             clusters: {{api: {{endpoints: ['a:1']}}}}\n\
             routes: [{{cluster: api, auth: {{certificate: {{{given}}}}}}}]\n"
        );
        let error = parse("c.yaml", &text, &[]).unwrap_err().to_string();
        assert!(error.contains(&format!("3: routes[0].auth.certificate.{expected}")), "{error}");
    }
}

const CLUSTERS: &[(&str, &str)] = &[
    ("{}", "clusters.b: endpoints is missing; write a list of addresses, or discover"),
    (
        "{discover: {}}",
        "clusters.b.discover: expected exactly one source; write dns, file, consul, etcd or kubernetes",
    ),
    (
        "{discover: {file: /a, consul: {service: a}}}",
        "clusters.b.discover: expected exactly one source; write dns, file, consul, etcd or kubernetes",
    ),
    ("{discover: {dns: {port: 1}}}", "clusters.b.discover.dns: name is missing; write the name to look up"),
    (
        "{discover: {dns: {name: a.example}}}",
        "clusters.b.discover.dns: the port is missing; write the one that the endpoints listen on",
    ),
    (
        "{discover: {dns: {name: a.example, record: SRV, port: 1}}}",
        "clusters.b.discover.dns: SRV records have their own ports; remove port",
    ),
    (
        "{discover: {dns: {name: a.example, port: 1, servers: [a]}}}",
        "clusters.b.discover.dns.servers[0]: \"a\" is not the address of a name server; write ip or ip:port",
    ),
    (
        "{discover: {dns: {name: a.example, port: 1, interval_min: 2m}}}",
        "clusters.b.discover.dns: interval_min is longer than interval_max; make it shorter",
    ),
    (
        "{discover: {dns: {name: 'a b', port: 1}}}",
        "clusters.b.discover.dns.name: \"a b\" is not a name of the DNS",
    ),
    (
        "{discover: {consul: {service: 'a/b'}}}",
        "clusters.b.discover.consul.service: \"a/b\" is not a name; write letters, digits, -, _ and .",
    ),
    (
        "{discover: {consul: {service: a, url: 'http://a/b'}}}",
        "clusters.b.discover.consul.url: \"http://a:80/b\" has a path; write http://host:port",
    ),
    (
        "{discover: {etcd: {prefix: /a/, user: a}}}",
        "clusters.b.discover.etcd: user and password_file belong together; write both or none",
    ),
    (
        "{discover: {etcd: {prefix: /a/, endpoints: []}}}",
        "clusters.b.discover.etcd: the list of endpoints is empty; write at least one URL",
    ),
    ("{endpoints: []}", "clusters.b.endpoints: the list is empty; write at least one address"),
    (
        "{endpoints: ['a:1', 'a:1']}",
        "clusters.b.endpoints[1]: a:1 is listed twice; keep one and give it a weight",
    ),
    (
        "{endpoints: ['a:0']}",
        "clusters.b.endpoints[0]: a:0 has port 0, which nothing listens on; write its port",
    ),
    (
        "{endpoints: [{weight: 1}]}",
        "clusters.b.endpoints[0]: address is missing; write host:port or unix:/path",
    ),
    (
        "{endpoints: [{address: 'a:1', weight: 1001}]}",
        "clusters.b.endpoints[0].weight: 1001 is out of range; write a whole number from 1 to 1000",
    ),
    (
        "{endpoints: ['a:1'], balance: rundrobin}",
        "clusters.b.balance: \"rundrobin\" is not known; did you mean round_robin?",
    ),
    (
        "{endpoints: ['a:1'], balance: {hash: client_address}, affinity: {cookie: {}}}",
        "clusters.b.affinity: a hash already keeps clients at their endpoints; remove it or balance",
    ),
    (
        "{endpoints: [{address: 'a:1', backup: true}]}",
        "clusters.b.endpoints: all endpoints are backups; write at least one without backup",
    ),
    (
        "{endpoints: ['a:1'], health_check: {protocol: tcp, path: /up}}",
        "clusters.b.health_check.path: this has no effect with protocol: tcp; remove it",
    ),
    (
        "{endpoints: ['a:1'], health_check: {grpc_service: users}}",
        "clusters.b.health_check.grpc_service: this has no effect with protocol: http; remove it",
    ),
    ("{endpoints: ['a:1'], affinity: {}}", "clusters.b.affinity: cookie is missing; write cookie: {}"),
    (
        "{endpoints: ['a:1'], affinity: {cookie: {name: 'a b'}}}",
        "clusters.b.affinity.cookie.name: \"a b\" is not a name of a cookie; write letters, digits and hyphens",
    ),
    (
        "{endpoints: ['a:1'], affinity: {cookie: {ttl: 1500ms}}}",
        "clusters.b.affinity.cookie.ttl: browsers count in seconds; write a whole number of them",
    ),
    (
        "{endpoints: ['a:1'], balance: {hash: ip}}",
        "clusters.b.balance.hash: \"ip\" is not known; write client_address, {header: name} or {cookie: name}",
    ),
    (
        "{endpoints: ['a:1'], balance: {hash: {}}}",
        "clusters.b.balance.hash: expected exactly one key; write header or cookie",
    ),
    (
        "{endpoints: ['a:1'], health_check: {path: up}}",
        "clusters.b.health_check.path: \"up\" does not begin with /; write /up",
    ),
    (
        "{endpoints: ['a:1'], health_check: {timeout_ms: 6000}}",
        "clusters.b.health_check: timeout 6s is over interval 5s; lower it",
    ),
    (
        "{endpoints: ['a:1'], health_check: {expected_statuses: [399-200]}}",
        "clusters.b.health_check.expected_statuses[0]: \"399-200\" is text; write a status from 100 to 599 or a range such as \"200-399\"",
    ),
    (
        "{endpoints: ['a:1'], health_check: {expected_statuses: []}}",
        "clusters.b.health_check.expected_statuses: the list is empty; write at least one, such as 200 or \
         \"200-399\"",
    ),
    (
        "{endpoints: ['a:1'], endpoint_header: Upgrade}",
        "clusters.b.endpoint_header: \"Upgrade\" cannot be changed: sluice frames messages itself; remove \
         it",
    ),
    (
        "{endpoints: ['a:1'], pool: {idle_max: 1}}",
        "clusters.b.pool.idle_max: unknown key; known here: idle_max_per_endpoint, idle_timeout",
    ),
    ("{endpoints: ['a:1'], ejection: off}", "clusters.b.ejection: \"off\" is text; write a map"),
    (
        "{endpoints: ['a:1'], max_in_flight: 0}",
        "clusters.b.max_in_flight: 0 is out of range; write requests from 1 to 1000000",
    ),
    (
        "{endpoints: [{address: 'a:1', max_in_flight: atuo}]}",
        "clusters.b.endpoints[0].max_in_flight: \"atuo\" is text; write requests from 1 to 1000000, auto or off",
    ),
    (
        "{endpoints: ['a:1'], auto_limit: {min: 9, max: 8}}",
        "clusters.b.auto_limit: min 9 is over max 8; lower it",
    ),
    (
        "{endpoints: ['a:1'], queue: {order: filo}}",
        "clusters.b.queue.order: \"filo\" is not known; did you mean fifo?",
    ),
    (
        "{endpoints: ['a:1'], queue: {timeout_ms: 0}}",
        "clusters.b.queue.timeout_ms: 0 is out of range; write milliseconds from 1 to 3600000",
    ),
];

#[test]
fn mistakes_in_cluster_keys() {
    for (given, expected) in CLUSTERS {
        let found = one(&format!("  b: {given}\nroutes: [{{cluster: api}}]\n"));
        assert_eq!(found, format!("c.yaml:4: {expected}"), "{given}");
    }
}
