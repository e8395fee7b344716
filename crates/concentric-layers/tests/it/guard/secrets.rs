use super::{check, check_part};
use concentric_layers::guard::{Rules, secrets};

/// A text without a form of its own.
const RANDOM: &str = "Zx8kQ2mN7pR4tV1wY6bC3dF9aB5eG0hJ";

// Case F055.
#[test]
fn a_key_with_any_known_prefix_is_found() {
    let rules = Rules::new(secrets::all()).unwrap();
    let pem = ["", "RSA ", "EC ", "DSA ", "OPENSSH ", "ENCRYPTED "];
    let pem = pem.map(|kind| format!("-----BEGIN {kind}PRIVATE KEY-----\n"));
    let prefixes = [
        (
            "anthropic",
            &[
                "sk-ant-api03-",
                "sk-ant-admin01-",
                "sk-ant-oat01-",
                "sk-ant-sid01-",
            ][..],
        ),
        (
            "openai",
            &[
                "sk-",
                "sk-proj-",
                "sk-svcacct-",
                "sk-admin-",
                "sk-None-",
                "sk-or-v1-",
            ],
        ),
        ("google", &["AIza", "AIzaSy", "GOCSPX-", "ya29."]),
        ("aws", &["AKIA", "ASIA", "aws_secret_access_key = "]),
        (
            "github",
            &["ghp_", "gho_", "ghu_", "ghs_", "ghr_", "github_pat_"],
        ),
        (
            "slack",
            &[
                "xoxb-", "xoxp-", "xoxa-", "xoxe-", "xoxo-", "xoxr-", "xoxs-", "xapp-",
            ],
        ),
        ("slack", &["https://hooks.slack.com/services/"]),
        (
            "stripe",
            &["sk_live_", "sk_test_", "rk_live_", "rk_test_", "whsec_"],
        ),
        ("jwt", &["eyJhbGciOiJIUzI1NiJ9.eyJ"]),
        (
            "bearer",
            &["Bearer ", "Authorization: Basic ", "Authorization: token "],
        ),
        (
            "connection_string",
            &[
                "postgres://u:",
                "mysql://u:",
                "mongodb+srv://u:",
                "redis://:",
            ],
        ),
        (
            "generic",
            &[
                "api_key=",
                "client_secret: ",
                "password = ",
                "refresh_token=",
                "token: ",
            ],
        ),
        ("pem", &pem.each_ref().map(String::as_str)),
    ];
    for (name, prefixes) in prefixes {
        for prefix in prefixes {
            // The length that the format has, and a text that ends as it does.
            let len = match *prefix {
                "AIza" => 35,
                "AIzaSy" => 33,
                "GOCSPX-" => 28,
                "AKIA" | "ASIA" => 16,
                "aws_secret_access_key = " => 40,
                _ => 32,
            };
            let mut key = RANDOM.repeat(2)[..len].to_owned();
            if prefix.len() == 4 && name == "aws" {
                key = key.to_uppercase();
            }
            let end = if name == "connection_string" {
                "@db"
            } else {
                ""
            };
            for (before, after) in [("", ""), ("key: \"", "\","), ("curl -H '", "'")] {
                let text = [before, prefix, &key, end, after].concat();
                let found = rules.find(&text);
                let found: Vec<&str> = found.into_iter().map(|rule| rule.name()).collect();
                assert_eq!(found, [name], "{text}");
                let shown = rules.apply(&text);
                assert!(!shown.contains(&key[..8]), "{text}: {shown}");
            }
        }
    }
}

#[test]
fn private_keys() {
    check(
        secrets::pem(),
        &[
            "-----BEGIN PRIVATE KEY-----\nMIIEvQIBADAN+/=\n-----END PRIVATE KEY-----",
            "-----BEGIN RSA PRIVATE KEY-----\nMIIEvQIBADAN\n-----END RSA PRIVATE KEY-----",
            "-----BEGIN EC PRIVATE KEY-----\\nMHcCAQEE\\n-----END EC PRIVATE KEY-----",
            "-----BEGIN OPENSSH PRIVATE KEY-----\nb3BlbnNzaC1rZXk\n-----END OPENSSH PRIVATE KEY-----",
            "-----BEGIN RSA PRIVATE KEY-----\nProc-Type: 4,ENCRYPTED\nDEK-Info: AES-128-CBC,0A1B\n\nMIIE\n-----END RSA PRIVATE KEY-----",
        ],
        &[
            "-----BEGIN PUBLIC KEY-----\nMIIBIjAN\n-----END PUBLIC KEY-----",
            "-----BEGIN CERTIFICATE-----\nMIIBIjAN\n-----END CERTIFICATE-----",
            "a private key",
            "--BEGIN PRIVATE KEY--",
        ],
    );
    let rules = Rules::new([secrets::pem()]).unwrap();
    let cut = "-----BEGIN PRIVATE KEY-----\nMIIEvQIBADANBgkqhkiG9w0BAQEF";
    assert_eq!(rules.apply(cut), "[pem]");
}

#[test]
fn keys_of_services() {
    check(
        secrets::anthropic(),
        &[
            "sk-ant-api03-AbCdEfGhIjKlMnOpQrSt",
            "sk-ant-admin01-x_y-zAbCdEfGhIjKl",
        ],
        &[
            "sk-ant-short",
            "sk-antonym-of-something",
            "ask-ant-api03-AbCdEfGh",
        ],
    );
    check(
        secrets::openai(),
        &[
            "sk-abcdefghijklmnopqrstuvwxyz123456",
            "sk-proj-AbC1dEfGhIjKlMnOpQrStUvWxYz",
            "sk-svcacct-AbC1dEfGhIjKlMnOpQrStUvWxYz_-9",
        ],
        &[
            "sk-short1",
            "sk-a-name-of-many-words-with-hyphens",
            "task-1234567890123456789012345",
        ],
    );
    check(
        secrets::google(),
        &[
            "AIzaSyA1234567890abcdefghijklmnopqrstuv",
            "GOCSPX-1234567890abcdefghijklmnopqr",
            "ya29.a0AfH6SMBx1234567890abcd",
        ],
        &["AIza", "AIzaSyA1234567890", "GOCSPX-short", "ya29.short"],
    );
    check(
        secrets::aws(),
        &["AKIAIOSFODNN7EXAMPLE", "ASIAIOSFODNN7EXAMPLE"],
        &[
            "AKIAIOSFODNN7EXAMPL",
            "AKIAIOSFODNN7EXAMPLEX",
            "akiaiosfodnn7example",
            "XAKIAIOSFODNN7EXAMPLE",
        ],
    );
    check_part(
        secrets::aws(),
        &[
            "aws_secret_access_key = <wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY>",
            "\"SecretAccessKey\": \"<wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY>\"",
        ],
        &[
            "aws_secret_access_key = none",
            "secret access key wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY",
        ],
    );
    check(
        secrets::github(),
        &[
            "ghp_1234567890abcdefghijklmnopqrstuvwxyz",
            "gho_1234567890abcdefghijklmnopqrstuvwxyz",
            "github_pat_11ABCDEFG0123456789_abcdef",
        ],
        &[
            "ghp_short",
            "ghx_1234567890abcdefghijklmnopqrstuvwxyz",
            "github_pattern",
        ],
    );
    check(
        secrets::slack(),
        &[
            ["xoxb-", "123456789012-abcdefghijkl"].concat().as_str(),
            ["xapp-", "1-A0123-456-abcdef"].concat().as_str(),
            [
                "https://hooks.slack.com/services/",
                "T00000000/B00000000/XXXXXXXXXXXXXXXXXXXXXXXX",
            ]
            .concat()
            .as_str(),
        ],
        &[
            "xoxb-short",
            "xoxz-123456789012",
            "https://slack.com/services/x",
        ],
    );
    check(
        secrets::stripe(),
        &[
            ["sk_live_", "4eC39HqLyjWDarjtT1zdp7dc"].concat().as_str(),
            ["rk_test_", "4eC39HqLyjWDarjtT1zdp7dc"].concat().as_str(),
            ["whsec_", "4eC39HqLyjWDarjtT1zdp7dc"].concat().as_str(),
        ],
        &[
            "pk_live_4eC39HqLyjWDarjtT1zdp7dc",
            "sk_live_short",
            "sk_prod_4eC39HqLyjWDarjtT1zdp7dc",
        ],
    );
    check(
        secrets::jwt(),
        &[
            "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.dozjgNryP4J3jVmNHl0w5N_XgL0n3I9PlFUP0THsR8U",
            "eyJhbGciOiJub25lIn0.eyJzdWIiOiIxIn0",
        ],
        &["eyJhbGciOiJIUzI1NiJ9", "eyJ.eyJ.x", "eyJhbGci.abc.def"],
    );
}

#[test]
fn passwords() {
    check_part(
        secrets::connection_string(),
        &[
            "postgres://app:<hunter2>@db:5432/shop",
            "mongodb+srv://root:<p%40ss>@cluster0.example.net",
            "redis://:<hunter2>@cache",
            "Server=db;User=sa;Password=<hunter22>;",
            "AccountKey=<AbCdEf0123456789==>;",
        ],
        &[
            "postgres://db:5432/shop",
            "https://app:hunter2@host",
            "the password = none",
            "password=x",
        ],
    );
    check_part(
        secrets::bearer(),
        &[
            "Bearer <abcdefghijklmnop1234>",
            "authorization: bearer <ya29x.abcdefghijklmnop1234==>",
            "Authorization: Basic <dXNlcjpwYXNzd29yZA==>",
            "\"authorization\": \"token <0123456789abcdef>\"",
        ],
        &[
            "bearer of good news",
            "Bearer authentication-mechanisms",
            "basic understanding",
            "Authorization: Digest x",
        ],
    );
    check_part(
        secrets::generic(),
        &[
            "api_key = \"<a8f5f167f44f4964e6c998dee827110c>\"",
            "MY_SECRET=<Zx8kQ2mN7pR4tV1wY6bC3dF9>",
            "accessToken: <Zx8kQ2mN7pR4tV1wY6bC3dF9>",
            "the password is <Zx8kQ2mN7pR4tV1wY6bC3dF9>",
            "client-secret: '<Zx8kQ2mN7pR4tV1wY6bC3dF9>'",
        ],
        &[
            "commit a8f5f167f44f4964e6c998dee827110c5c5c5c5c",
            "password: aaaaaaaaaaaaaaaaaaaaaaaa1",
            "the secret is that nobody knows",
            "token: short",
            "tokens = max_output_tokens_of_the_model",
            "secretary: Zx8kQ2mN7pR4tV1wY6bC3dF9",
        ],
    );
}
