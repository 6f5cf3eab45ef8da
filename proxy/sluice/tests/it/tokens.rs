//! Who may use a route, by signed tokens.

use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::{SystemTime, UNIX_EPOCH};

use jsonwebtoken::jwk::Jwk;
use jsonwebtoken::{Algorithm, EncodingKey, Header, encode};
use rcgen::{KeyPair, PKCS_ECDSA_P256_SHA256, PKCS_ED25519, PKCS_RSA_SHA256, SignatureAlgorithm};
use serde_json::{Value, json};

use super::support::{Message, Origin, Proxy, Setup, ok};

/// A key of an issuer.
struct Signer {
    name: &'static str,
    algorithm: Algorithm,
    pair: KeyPair,
}

impl Signer {
    fn new(name: &'static str, algorithm: Algorithm) -> Self {
        let kind: &SignatureAlgorithm = match algorithm {
            Algorithm::RS256 => &PKCS_RSA_SHA256,
            Algorithm::ES256 => &PKCS_ECDSA_P256_SHA256,
            _ => &PKCS_ED25519,
        };
        Self { name, algorithm, pair: KeyPair::generate_for(kind).unwrap() }
    }

    fn private(&self) -> EncodingKey {
        let pem = self.pair.serialize_pem();
        match self.algorithm {
            Algorithm::RS256 => EncodingKey::from_rsa_pem(pem.as_bytes()),
            Algorithm::ES256 => EncodingKey::from_ec_pem(pem.as_bytes()),
            _ => EncodingKey::from_ed_pem(pem.as_bytes()),
        }
        .unwrap()
    }

    fn public(&self) -> Value {
        if self.algorithm == Algorithm::EdDSA {
            let point = data_encoding::BASE64URL_NOPAD.encode(self.pair.public_key_raw());
            return json!({"kty": "OKP", "crv": "Ed25519", "x": point, "kid": self.name, "use": "sig"});
        }
        let mut jwk = Jwk::from_encoding_key(&self.private(), self.algorithm).unwrap();
        jwk.common.key_id = Some(self.name.to_owned());
        serde_json::to_value(jwk).unwrap()
    }

    fn sign(&self, claims: &Value) -> String {
        let mut header = Header::new(self.algorithm);
        header.kid = Some(self.name.to_owned());
        encode(&header, claims, &self.private()).unwrap()
    }
}

/// Claims that are accepted.
fn claims() -> Value {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
    json!({
        "sub": "ann", "iss": "https://id.test/", "aud": ["shop", "other"], "exp": now + 600, "iat": now,
        "roles": ["admin", "staff"], "org": {"name": "Acme"},
    })
}

fn changed(key: &str, value: Value) -> Value {
    let mut claims = claims();
    claims[key] = value;
    claims
}

/// Publishes keys that a test may replace.
struct Issuer {
    origin: Origin,
    keys: Arc<Mutex<Vec<u8>>>,
    asked: Arc<AtomicUsize>,
}

fn set_of(keys: &[&Signer]) -> Vec<u8> {
    let keys: Vec<Value> = keys.iter().map(|key| key.public()).collect();
    ok(&json!({"keys": keys}).to_string())
}

impl Issuer {
    fn publishing(keys: &[&Signer]) -> Self {
        let (keys, asked) = (Arc::new(Mutex::new(set_of(keys))), Arc::new(AtomicUsize::new(0)));
        let (shown, count) = (Arc::clone(&keys), Arc::clone(&asked));
        let origin = Origin::answering(move |_| {
            count.fetch_add(1, SeqCst);
            shown.lock().unwrap().clone()
        });
        Self { origin, keys, asked }
    }

    fn jwt(&self) -> Value {
        json!({
            "jwks_url": format!("http://{}/keys", self.origin.endpoint), "issuer": "https://id.test/",
            "audience": ["shop"], "claims_to_headers": {"roles": "X-Roles", "org.name": "X-Org", "absent": "X-Absent"},
        })
    }
}

fn start(setup: Setup, jwt: Value) -> Option<Proxy> {
    let set = json!({"set": {"X-User": "{auth_user}"}});
    setup
        .with("routes", json!([{"cluster": "default", "auth": {"jwt": jwt}, "request_headers": set}]))
        .start()
}

fn ask(proxy: &Proxy, fields: &str) -> Message {
    proxy.ask(format!("GET / HTTP/1.1\r\nHost: a.test\r\n{fields}\r\n"))
}

fn bearer(token: &str) -> String {
    format!("Authorization: Bearer {token}\r\n")
}

#[test]
fn a_good_token_passes_and_tells_who_it_is_of() {
    let origin = Origin::saying("hello");
    let signers = [
        Signer::new("rsa", Algorithm::RS256),
        Signer::new("curve", Algorithm::ES256),
        Signer::new("edwards", Algorithm::EdDSA),
    ];
    let issuer = Issuer::publishing(&signers.iter().collect::<Vec<_>>());
    let Some(proxy) = start(Setup::to_origin(&origin), issuer.jwt()) else { return };
    let forged = "X-Roles: root\r\nx_roles: root\r\nX-Absent: root\r\nX-USER: root\r\n";
    for signer in &signers {
        // Twice: the second is remembered.
        for _ in 0..2 {
            let token = bearer(&signer.sign(&claims()));
            assert_eq!(ask(&proxy, &format!("{token}{forged}")).status(), 200, "{}", signer.name);
            let seen = origin.last();
            let values = ["x-user", "x-roles", "x-org", "x-absent"].map(|name| seen.all(name).join("|"));
            assert_eq!(values, ["ann", "admin,staff", "Acme", ""]);
            assert_eq!((seen.get("x_roles"), seen.all("authorization").len()), (None, 1));
        }
    }
    assert_eq!(issuer.asked.load(SeqCst), 1, "the keys are fetched once");
}

#[test]
fn nothing_else_passes() {
    let origin = Origin::saying("hello");
    let (ours, theirs) = (Signer::new("rsa", Algorithm::RS256), Signer::new("rsa", Algorithm::RS256));
    let issuer = Issuer::publishing(&[&ours]);
    let Some(proxy) = start(Setup::to_origin(&origin), issuer.jwt()) else { return };
    let absent = ask(&proxy, "");
    assert_eq!((absent.status(), absent.get("www-authenticate")), (401, Some("Bearer realm=\"Restricted\"")));
    let good = ours.sign(&claims());
    let (head, rest) = good.split_once('.').unwrap();
    let (payload, signature) = rest.split_once('.').unwrap();
    let coded = |text: &str| data_encoding::BASE64URL_NOPAD.encode(text.as_bytes());
    let none = coded("{\"alg\":\"none\",\"kid\":\"rsa\"}");
    let critical = coded("{\"alg\":\"RS256\",\"kid\":\"rsa\",\"crit\":[\"x\"],\"x\":1}");
    let root = coded(&changed("sub", json!("root")).to_string());
    // The public key as a secret: anybody has it.
    let mut confused = Header::new(Algorithm::HS256);
    confused.kid = Some("rsa".to_owned());
    let secret = EncodingKey::from_secret(ours.pair.public_key_pem().as_bytes());
    let confused = encode(&confused, &claims(), &secret).unwrap();
    let without = |key: &str| {
        let mut claims = claims();
        claims.as_object_mut().unwrap().remove(key);
        ours.sign(&claims)
    };
    let signed = |key: &str, value: Value| ours.sign(&changed(key, value));
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
    for (why, token, said) in [
        ("nothing", String::new(), "Bearer realm"),
        ("no token", "abc".to_owned(), "malformed"),
        ("two parts", format!("{head}.{payload}"), "malformed"),
        ("four parts", format!("{good}.x"), "malformed"),
        ("another signer", theirs.sign(&claims()), "signature"),
        ("no signature", format!("{head}.{payload}."), "signature"),
        ("another payload", format!("{head}.{root}.{signature}"), "signature"),
        ("alg none", format!("{none}.{payload}."), "malformed"),
        ("alg none, signed", format!("{none}.{payload}.{signature}"), "malformed"),
        ("a critical extension", format!("{critical}.{payload}.{signature}"), "malformed"),
        ("a public key as a secret", confused, "malformed"),
        ("expired", signed("exp", json!(now - 31)), "expired"),
        ("no expiry", without("exp"), "claims"),
        ("an expiry in words", signed("exp", json!("tomorrow")), "claims"),
        ("too early", signed("nbf", json!(now + 90)), "not valid yet"),
        ("another issuer", signed("iss", json!("https://id.test")), "claims"),
        ("no issuer", without("iss"), "claims"),
        ("another audience", signed("aud", json!("shops")), "claims"),
        ("no audience", without("aud"), "claims"),
        ("a line break in a claim", signed("roles", json!("a\r\nX-User: root")), "claims"),
        ("a comma in a list", signed("roles", json!(["a,admin"])), "claims"),
        ("too long", "a".repeat(17 << 10), "malformed"),
    ] {
        let answer = ask(&proxy, &bearer(&token));
        // Heads have a limit, too.
        assert!(matches!(answer.status(), 401 | 431), "{why}: {}", answer.status());
        let challenge = answer.get("www-authenticate").unwrap_or(said);
        assert!(challenge.contains(said), "{why}: {challenge}");
    }
    for fields in [
        format!("{}{}", bearer(&good), bearer(&good)),
        format!("{}Authorization: Basic YTpi\r\n", bearer(&good)),
        format!("Authorization: Token {good}\r\n"),
        format!("Cookie: token={good}\r\n"),
        format!("Proxy-Authorization: Bearer {good}\r\n"),
    ] {
        assert_eq!(ask(&proxy, &fields).status(), 401, "{fields}");
    }
    assert_eq!(origin.requests().len(), 0);
    assert_eq!(ask(&proxy, &bearer(&good)).status(), 200);
    assert_eq!(ask(&proxy, &bearer(&signed("exp", json!(now - 20)))).status(), 200, "clocks may differ");
}

#[test]
fn a_new_key_of_the_issuer_is_fetched_but_not_for_each_unknown_one() {
    let origin = Origin::saying("hello");
    let (old, new) = (Signer::new("old", Algorithm::ES256), Signer::new("new", Algorithm::ES256));
    let issuer = Issuer::publishing(&[&old]);
    let Some(proxy) = start(Setup::to_origin(&origin), issuer.jwt()) else { return };
    assert_eq!(ask(&proxy, &bearer(&old.sign(&claims()))).status(), 200);
    // The keys are young, so nobody can have them fetched by making up names.
    for _ in 0..5 {
        assert_eq!(ask(&proxy, &bearer(&new.sign(&claims()))).status(), 401);
    }
    assert_eq!(issuer.asked.load(SeqCst), 1);
    // They stay over a reload.
    *issuer.keys.lock().unwrap() = set_of(&[&old, &new]);
    assert_eq!(proxy.reload(&proxy.config).0, Some(0));
    assert_eq!(ask(&proxy, &bearer(&old.sign(&claims()))).status(), 200);
    assert_eq!(issuer.asked.load(SeqCst), 1);
}

#[test]
fn nobody_passes_without_keys() {
    let origin = Origin::saying("hello");
    let signer = Signer::new("key", Algorithm::ES256);
    let issuer = Issuer::publishing(&[&signer]);
    for broken in [
        ok("{}"),
        ok("<html>"),
        b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n".to_vec(),
        ok(&"x".repeat(2 << 20)),
    ] {
        *issuer.keys.lock().unwrap() = broken;
        let Some(proxy) = start(Setup::to_origin(&origin), issuer.jwt()) else { return };
        let before = issuer.asked.load(SeqCst);
        for _ in 0..3 {
            let answer = ask(&proxy, &bearer(&signer.sign(&claims())));
            assert_eq!((answer.status(), answer.get("x-sluice-reason")), (502, Some("auth_failed")));
        }
        assert_eq!(ask(&proxy, "").status(), 401);
        assert_eq!(issuer.asked.load(SeqCst) - before, 1, "a failure is not repeated for each request");
        proxy.wait_for("the authority gave no answer that can be used");
    }
    assert_eq!(origin.requests().len(), 0);
}

#[test]
fn an_issuer_that_withdraws_its_keys_lets_nobody_through() {
    let origin = Origin::saying("hello");
    let signer = Signer::new("key", Algorithm::ES256);
    let issuer = Issuer::publishing(&[]);
    let Some(proxy) = start(Setup::to_origin(&origin), issuer.jwt()) else { return };
    assert_eq!(ask(&proxy, &bearer(&signer.sign(&claims()))).status(), 401);
    proxy.wait_for("none of the issuer's keys can be used");
    let mut encrypting = signer.public();
    encrypting["key_ops"] = json!(["encrypt"]);
    *issuer.keys.lock().unwrap() = ok(&json!({"keys": [encrypting]}).to_string());
    let Some(proxy) = start(Setup::to_origin(&origin), issuer.jwt()) else { return };
    assert_eq!(ask(&proxy, &bearer(&signer.sign(&claims()))).status(), 401);
    assert_eq!(origin.requests().len(), 0);
}

#[test]
fn keys_of_a_file_and_tokens_in_a_cookie() {
    let origin = Origin::saying("hello");
    let signer = Signer::new("key", Algorithm::EdDSA);
    let setup = Setup::to_origin(&origin);
    let file = setup.file("key.pem", &signer.pair.public_key_pem());
    let jwt = json!({"keys_file": file, "cookie": "token"});
    let Some(proxy) = start(setup, jwt) else { return };
    let good = signer.sign(&claims());
    // Without `audience`, any may be named.
    assert_eq!(ask(&proxy, &bearer(&good)).status(), 200);
    assert_eq!(ask(&proxy, &format!("Cookie: a=b; token={good}\r\n")).status(), 200);
    assert_eq!(ask(&proxy, &format!("Authorization: Basic YTpi\r\nCookie: token={good}\r\n")).status(), 200);
    for wrong in [
        "Cookie: token=\r\n".to_owned(),
        format!("Cookie: tokens={good}\r\n"),
        format!("Cookie: token={good}; token=x\r\n"),
        format!("Cookie: token={good}\r\nCookie: token=x\r\n"),
        format!("{}Cookie: token={good}\r\n", bearer("x")),
        format!("{}Cookie: token=x\r\n", bearer(&good)),
        format!("Authorization: Bearer\t{good}\r\nCookie: token={good}\r\n"),
        format!("Cookie: token =x; token={good}\r\n"),
    ] {
        assert_eq!(ask(&proxy, &wrong).status(), 401, "{wrong}");
    }
    std::fs::write(&file, "nothing").unwrap();
    let (code, said) = proxy.reload(&proxy.config);
    assert!(code != Some(0) && said.contains("routes[0].auth.jwt.keys_file"), "{said}");
    assert_eq!(ask(&proxy, &bearer(&good)).status(), 200);
    let other = Signer::new("key", Algorithm::EdDSA);
    std::fs::write(&file, other.pair.public_key_pem()).unwrap();
    assert_eq!(proxy.reload(&proxy.config).0, Some(0));
    assert_eq!(ask(&proxy, &bearer(&good)).status(), 401, "although it was right a moment ago");
    assert_eq!(ask(&proxy, &bearer(&other.sign(&claims()))).status(), 200);
}

#[test]
fn a_shared_secret_signs_only_where_it_is_asked_for() {
    let origin = Origin::saying("hello");
    let setup = Setup::to_origin(&origin);
    let secret = b"a secret of thirty-two characters";
    let coded = data_encoding::BASE64URL_NOPAD.encode(secret);
    let file = setup.file("secret.json", &json!({"keys": [{"kty": "oct", "k": coded}]}).to_string());
    let jwt = json!({"keys_file": file, "algorithms": ["HS256"]});
    let Some(proxy) = start(setup, jwt) else { return };
    let sign =
        |algorithm| encode(&Header::new(algorithm), &claims(), &EncodingKey::from_secret(secret)).unwrap();
    assert_eq!(ask(&proxy, &bearer(&sign(Algorithm::HS256))).status(), 200);
    assert_eq!(ask(&proxy, &bearer(&sign(Algorithm::HS512))).status(), 401);
    for (key, jwt) in [
        (coded.as_str(), json!({})),
        ("", json!({"algorithms": ["HS256"]})),
        ("YQ", json!({"algorithms": ["HS256"]})),
    ] {
        let setup = Setup::to_origin(&origin);
        let file = setup.file("secret.json", &json!({"keys": [{"kty": "oct", "k": key}]}).to_string());
        let mut jwt = jwt;
        jwt["keys_file"] = json!(file);
        let (code, said) =
            setup.with("routes", json!([{"cluster": "default", "auth": {"jwt": jwt}}])).fails();
        assert!(code == Some(1) && said.contains("no key that can be used"), "{key}: {said}");
    }
}
