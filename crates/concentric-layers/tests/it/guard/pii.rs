use super::{check, check_part};
use concentric_layers::guard::{Rules, pii, secrets};

#[test]
fn cards() {
    check(
        pii::card(),
        &[
            "4111111111111111",
            "4111 1111 1111 1111",
            "4111-1111-1111-1111",
            "4222222222222",
            "5555555555554444",
            "5105 1051 0510 5100",
            "2223003122003222",
            "378282246310005",
            "3714 496353 98431",
            "6011111111111117",
            "6011 0009 9013 9424",
            "3530111333300000",
            "30569309025904",
            "38520000023237",
            "6200000000000005",
        ],
        &[
            "4111 1111 1111 1112",
            "1234567812345670",
            "0000 0000 0000 0000",
            "41111111111111111111111",
            "411111111111111",
            "12345678",
            "2024-01-15 10:30",
            "order 8412345678901",
            "x4111111111111111",
            "4111111111111111_",
            "4111.1111.1111.1111",
            "9780306406157",
            "1 2 3 4 5 6 7 8 9 10",
        ],
    );
}

#[test]
fn a_card_is_found_before_its_expiry_date() {
    let rules = Rules::new([pii::card()]).unwrap();
    assert_eq!(rules.apply("4111 1111 1111 1111 12/27"), "[card] 12/27");
    assert_eq!(rules.apply("12 4111 1111 1111 1111"), "12 [card]");
}

#[test]
fn bank_accounts() {
    check(
        pii::iban(),
        &[
            "DE89370400440532013000",
            "DE89 3704 0044 0532 0130 00",
            "GB29NWBK60161331926819",
            "GB29 NWBK 6016 1331 9268 19",
            "FR1420041010050500013M02606",
            "NL91ABNA0417164300",
            "ES9121000418450200051332",
            "CH9300762011623852957",
            "AT611904300234573201",
            "BE68539007547034",
            "NO9386011117947",
            "PL61109010140000071219812874",
            "MT84MALT011000012345MTLCAST001S",
        ],
        &[
            "DE89370400440532013001",
            "DE8937040044053201300",
            "XX89370400440532013000",
            "de89370400440532013000",
            "AB12 CDEF",
            "GB29NWBK60161331926819X",
            "THE QUICK BROWN FOX",
            "FR14",
            "DE00000000000000000000",
        ],
    );
}

#[test]
fn credentials_in_urls() {
    check_part(
        pii::url_credentials(),
        &[
            "https://<bob:hunter2>@example.com/x",
            "ftp://<anonymous:a@b.c>@host",
            "http://<u:p%40ss>@localhost:8080",
            "amqp://<:secret>@queue",
            "git+ssh://<git:pass:word>@host/repo",
        ]
        .map(|text| text.replace("a@b.c", "a.b.c"))
        .iter()
        .map(String::as_str)
        .collect::<Vec<_>>(),
        &[
            "https://example.com:8080/x",
            "https://bob@example.com",
            "ssh://git@github.com/a/b",
            "https://example.com/a:b@c",
            "mailto:a@b.c",
            "bob:hunter2@example",
            "https://:@",
        ],
    );
}

#[test]
fn email_addresses() {
    check(
        pii::email(),
        &[
            "ann@example.com",
            "ann.b@example.co.uk",
            "ann+tag@example.com",
            "a@b.io",
            "A_B%C@EXAMPLE.ORG",
            "first.last@sub.sub2.example.museum",
            "1@example.com",
            "o-brien@ex-ample.com",
        ],
        &[
            "ann@example",
            "@example.com",
            "ann@",
            "ann at example.com",
            "ann@.com",
            "ann@example.c",
            "a@b@c",
            "npm install @scope/name",
            "user@localhost",
            "x @example.com",
        ],
    );
}

#[test]
fn hardware_addresses() {
    check(
        pii::mac(),
        &[
            "00:1A:2B:3C:4D:5E",
            "00-1a-2b-3c-4d-5e",
            "001a.2b3c.4d5e",
            "ff:ff:ff:ff:ff:ff",
            "01:23:45:67:89:ab",
        ],
        &[
            "00:1A:2B:3C:4D",
            "00:1A-2B:3C-4D:5E",
            "10:30:45",
            "1234.5678.9012",
            "0G:1A:2B:3C:4D:5E",
            "x00:1A:2B:3C:4D:5E",
            "a1b2c3d4-e5f6-7890-abcd-ef1234567890",
        ],
    );
}

#[test]
fn addresses_of_hosts() {
    check(
        pii::ip(),
        &[
            "192.168.0.1",
            "8.8.8.8",
            "255.255.255.255",
            "10.0.0.1",
            "2001:db8::8a2e:370:7334",
            "2001:0db8:85a3:0000:0000:8a2e:0370:7334",
            "fe80::1",
            "2606:4700:4700::1111",
            "1234:5678:9abc:def0:1234:5678:9abc:def0",
        ],
        &[
            "256.1.1.1",
            "1.2.3",
            "v1.2.3.4",
            "01.02.03.04",
            "10:30:45",
            "std::vec::Vec",
            "add::face",
            "a::b",
            "::",
            "12:34",
            "1.2.3.4a",
            "1,234.567.890",
        ],
    );
    check(
        pii::public_ip(),
        &["8.8.8.8", "1.1.1.1", "2606:4700:4700::1111"],
        &[
            "192.168.0.1",
            "127.0.0.1",
            "10.1.2.3",
            "172.16.0.1",
            "169.254.169.254",
            "0.0.0.0",
            "192.0.2.1",
            "fe80::1",
            "2001:db8::1",
            "fd12:3456:789a::1",
        ],
    );
}

#[test]
fn national_numbers() {
    check(
        pii::us_ssn(),
        &["524-11-2345", "524 11 2345", "001-01-0001", "899-99-9999"],
        &[
            "000-11-2345",
            "666-11-2345",
            "900-11-2345",
            "524-00-2345",
            "524-11-0000",
            "524112345",
            "524-11 2345",
            "5524-11-2345",
            "524-11-23456",
            "2024-11-2345",
        ],
    );
    check(
        pii::de_tax_id(),
        &[
            "86095742719",
            "47036892816",
            "65929970489",
            "57549285017",
            "25768131411",
            "86 095 742 719",
        ],
        &[
            "86095742718",
            "12345678901",
            "11111111111",
            "06095742719",
            "8609574271",
            "860957427190",
        ],
    );
    check(
        pii::uk_nino(),
        &["AB123456C", "AB 12 34 56 C", "JG103759A", "PE 123456 D"],
        &[
            "BG123456C",
            "ZZ123456C",
            "DB123456C",
            "AB123456E",
            "AB12345C",
            "AO123456C",
            "ab123456c",
            "XAB123456C",
        ],
    );
    check(
        pii::fr_nir(),
        &[
            "255081416802538",
            "2 55 08 14 168 025 38",
            "180126955222380",
            "1 80 12 69 552 223 80",
        ],
        &[
            "255081416802539",
            "955081416802538",
            "25508141680253",
            "2550814168025380",
        ],
    );
    check(
        pii::es_dni(),
        &[
            "12345678Z",
            "12345678-Z",
            "00000000T",
            "X1234567L",
            "Y1234567X",
            "Z-1234567-R",
        ],
        &[
            "12345678A",
            "1234567Z",
            "X1234567A",
            "12345678I",
            "112345678Z",
            "12345678z",
        ],
    );
}

#[test]
fn dates_of_birth() {
    check_part(
        pii::date_of_birth(),
        &[
            "born on <12 May 1980>",
            "Born <1980-05-12>",
            "DOB: <05/12/1980>",
            "date of birth: <12.05.1980>",
            "geboren am <12.5.1980>",
            "born <May 12, 1980>",
            "birthday is <12th of May 1980>",
            "born on <Sept. 3, 1999>",
            "date de naissance: <12/05/1980>",
        ],
        &[
            "12 May 1980",
            "due on 12 May 2025",
            "born in Paris",
            "dob: unknown",
            "stubborn 1980-05-12",
            "born 1980",
        ],
    );
}

#[test]
fn phone_numbers() {
    check(
        pii::phone(),
        &[
            "+49 30 1234567",
            "+493012345678",
            "+1 (415) 555-2671",
            "+44 20 7946 0958",
            "+33-1-23-45-67-89",
            "(415) 555-2671",
            "415-555-2671",
            "415.555.2671",
            "1-800-555-0199",
            "020 7946 0958",
            "030 12345678",
            "0171/1234567",
            "(030) 1234 5678",
            "0049 30 1234567",
        ],
        &[
            "1234567",
            "2024-01-15",
            "01/02/2024 10",
            "12.05.1980",
            "192.168.0.1",
            "3.14159265",
            "1 000 000",
            "115-555-2671",
            "+1",
            "v1.2.3",
            "0.123456789",
            "ISBN 978-3-16-148410-0",
            "100-200-300-400",
            "0123456789",
        ],
    );
}

#[test]
fn a_phone_number_is_not_found_in_a_card() {
    let rules = Rules::new(pii::all()).unwrap();
    assert_eq!(rules.apply("3714 496353 98431"), "[card]");
    assert_eq!(rules.apply("call (415) 555-2671"), "call [phone]");
}

/// The most matches in 10,000 words of recorded texts.
const MOST: f64 = 1.0;

#[test]
fn recorded_texts_have_few_matches() {
    let folder = std::env::var_os("CONCENTRIC_RECORDINGS").map(std::path::PathBuf::from);
    let Some(folder) = folder.filter(|folder| folder.is_dir()) else {
        eprintln!("skipped: no recordings; see CONCENTRIC_RECORDINGS");
        return;
    };
    let mut rules = pii::all();
    rules.extend(secrets::all());
    let rules = Rules::new(rules).unwrap();
    let mut words = 0;
    let mut counts = std::collections::BTreeMap::new();
    let mut folders = vec![folder];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            let Ok(text) = std::fs::read_to_string(path) else {
                continue;
            };
            let Ok(recorded) = serde_json::from_str::<serde_json::Value>(&text) else {
                continue;
            };
            let mut values = vec![&recorded];
            while let Some(value) = values.pop() {
                match value {
                    serde_json::Value::Array(items) => values.extend(items),
                    serde_json::Value::Object(fields) => values.extend(fields.values()),
                    // Sentences, rather than ids and encodings.
                    serde_json::Value::String(text) if text.split(' ').count() > 3 => {
                        words += text.split_whitespace().count();
                        for rule in rules.find(text) {
                            *counts.entry(rule.name().to_owned()).or_insert(0_u32) += 1;
                        }
                    }
                    _ => {}
                }
            }
        }
    }
    println!("{words} words: {counts:?}");
    for (rule, count) in counts {
        let rate = f64::from(count) * 10_000.0 / words as f64;
        assert!(rate <= MOST, "{rule}: {rate} in 10,000 words");
    }
}
