use super::*;
use crate::cluster::Dirty;
use openssl::asn1::Asn1Integer;
use openssl::bn::BigNum;
use openssl::ec::{EcGroup, EcKey};
use openssl::hash::MessageDigest;
use openssl::nid::Nid;
use openssl::rsa::Rsa;
use openssl::symm::Cipher;
use openssl::x509::X509NameBuilder;

const NOT_AFTER: i64 = 2_000_000_000;

fn ec(curve: Nid) -> EcKey<Private> {
    EcKey::generate(&EcGroup::from_curve_name(curve).unwrap()).unwrap()
}

fn p256() -> PKey<Private> {
    PKey::from_ec_key(ec(Nid::X9_62_PRIME256V1)).unwrap()
}

fn certificate(key: &PKey<Private>, digest: MessageDigest) -> String {
    let mut name = X509NameBuilder::new().unwrap();
    name.append_entry_by_text("CN", "test").unwrap();
    let name = name.build();
    let mut builder = X509::builder().unwrap();
    builder.set_version(2).unwrap();
    builder.set_serial_number(&Asn1Integer::from_bn(&BigNum::from_u32(1).unwrap()).unwrap()).unwrap();
    builder.set_subject_name(&name).unwrap();
    builder.set_issuer_name(&name).unwrap();
    builder.set_not_before(&Asn1Time::from_unix(1).unwrap()).unwrap();
    builder.set_not_after(&Asn1Time::from_unix(NOT_AFTER).unwrap()).unwrap();
    builder.set_pubkey(key).unwrap();
    builder.sign(key, digest).unwrap();
    text(builder.build().to_pem().unwrap())
}

fn text(pem: Vec<u8>) -> String {
    String::from_utf8(pem).unwrap()
}

fn pkcs8(key: &PKey<Private>) -> String {
    text(key.private_key_to_pem_pkcs8().unwrap())
}

/// A certificate of its own key, and that key.
fn pair() -> (String, String) {
    let key = p256();
    (certificate(&key, MessageDigest::sha256()), pkcs8(&key))
}

fn secret(crt: &str, key: &str) -> SecretObject {
    SecretObject {
        key: Key::new("ns", "s"),
        uid: "".into(),
        resource_version: "".into(),
        secret_type: TLS_TYPE.into(),
        data: [
            ("tls.crt".into(), crt.as_bytes().to_vec().into_boxed_slice()),
            ("tls.key".into(), key.as_bytes().to_vec().into_boxed_slice()),
        ]
        .into(),
    }
}

fn read(crt: &str, key: &str) -> Result<CertifiedKey, Problem> {
    parse(&secret(crt, key), &mut None)
}

#[test]
fn keys_of_every_kind_and_encoding_are_taken() {
    let p256 = ec(Nid::X9_62_PRIME256V1);
    let sec1 = text(p256.private_key_to_pem().unwrap());
    // what `openssl ecparam -genkey` writes: the curve's name in a block of its own, here P-256
    let parameters = "-----BEGIN EC PARAMETERS-----\nBggqhkjOPQMBBw==\n-----END EC PARAMETERS-----\n";
    let rsa = Rsa::generate(2048).unwrap();
    let pkcs1 = text(rsa.private_key_to_pem().unwrap());
    let (p256, rsa) = (PKey::from_ec_key(p256).unwrap(), PKey::from_rsa(rsa).unwrap());
    let p384 = PKey::from_ec_key(ec(Nid::SECP384R1)).unwrap();
    let ed25519 = PKey::generate_ed25519().unwrap();
    for (what, key, pem, digest) in [
        ("P-256 SEC1", &p256, sec1.clone(), MessageDigest::sha256()),
        ("P-256 SEC1 behind its parameters", &p256, format!("{parameters}{sec1}"), MessageDigest::sha256()),
        ("P-256 PKCS#8", &p256, pkcs8(&p256), MessageDigest::sha256()),
        ("P-384 PKCS#8", &p384, pkcs8(&p384), MessageDigest::sha384()),
        ("RSA PKCS#1", &rsa, pkcs1, MessageDigest::sha256()),
        ("RSA PKCS#8", &rsa, pkcs8(&rsa), MessageDigest::sha256()),
        ("Ed25519", &ed25519, pkcs8(&ed25519), MessageDigest::null()),
    ] {
        let crt = certificate(key, digest);
        let read = read(&crt, &pem).unwrap_or_else(|problem| panic!("{what}: {problem}"));
        assert_eq!(read.not_after, NOT_AFTER, "{what}");
        let again = PKey::private_key_from_der(read.key.secret_der()).unwrap();
        assert!(again.public_eq(key), "{what}");
        assert_eq!(read.source.to_string(), "secret/ns/s");
    }
}

#[test]
fn chains_are_kept_in_order_and_text_around_blocks_is_skipped() {
    let ((leaf, key), (issuer, _)) = (pair(), pair());
    let dressed = format!("subject=/CN=test\r\n\n{leaf}\nsome words\n{issuer}trailing words, no newline");
    let read = read(&dressed, &format!("Bag Attributes\n  x: y\n{key}")).unwrap();
    let der = |pem: &str| X509::from_pem(pem.as_bytes()).unwrap().to_der().unwrap();
    let chain: Vec<_> = read.chain.iter().map(|der| der.to_vec()).collect();
    assert_eq!(chain, [der(&leaf), der(&issuer)]);
    let windows = super::tests::read(&leaf.replace('\n', "\r\n"), &key.replace('\n', "\r\n")).unwrap();
    assert_eq!(windows.chain.len(), 1);
    assert_ne!(windows.fingerprint, read.fingerprint);
}

#[test]
fn what_cannot_be_served_is_told_apart_without_a_word_of_it() {
    let ((crt, key), (_, other)) = (pair(), pair());
    let p256 = p256();
    let locked = text(p256.private_key_to_pem_pkcs8_passphrase(Cipher::aes_128_cbc(), b"x").unwrap());
    let locked_sec1 =
        p256.ec_key().unwrap().private_key_to_pem_passphrase(Cipher::aes_128_cbc(), b"x").unwrap();
    let locked_crt = crt.replace(
        "CERTIFICATE-----\n",
        "CERTIFICATE-----\nProc-Type: 4,ENCRYPTED\nDEK-Info: AES-128-CBC,00112233445566778899AABBCCDDEEFF\n\n",
    );
    let damaged = crt.replace("MII", "MXX");
    let large = "x".repeat(MAX_SECRET_VALUE + 1);
    for (what, crt, key, want) in [
        ("random bytes", "\u{1}\u{2}zz\u{7f}", &*key, Problem::Certificate),
        ("empty certificate", "", &key, Problem::Missing("tls.crt")),
        ("empty key", &crt, "", Problem::Missing("tls.key")),
        ("too large", &large, &key, Problem::TooLarge("tls.crt")),
        ("damaged", &damaged, &key, Problem::Certificate),
        ("second one damaged", &format!("{crt}{damaged}"), &key, Problem::Certificate),
        ("a key for a certificate", &key, &key, Problem::Certificate),
        ("a certificate for a key", &crt, &crt, Problem::Key),
        ("cut off", &crt, &key[..key.len() / 2], Problem::Key),
        ("another's key", &crt, &other, Problem::Mismatch),
        ("encrypted PKCS#8", &crt, &locked, Problem::Encrypted("tls.key")),
        ("encrypted SEC1", &crt, &text(locked_sec1), Problem::Encrypted("tls.key")),
        ("encrypted certificate", &locked_crt, &key, Problem::Encrypted("tls.crt")),
    ] {
        let problem = read(crt, key).map(|_| ()).unwrap_err();
        assert_eq!(problem, want, "{what}");
    }
    let opaque = SecretObject { secret_type: "Opaque".into(), ..secret(&crt, &key) };
    assert_eq!(parse(&opaque, &mut None).unwrap_err(), Problem::Type("Opaque".into()));
}

#[test]
fn a_pair_that_no_handshake_takes_ends_here() {
    let small = PKey::from_rsa(Rsa::generate(1024).unwrap()).unwrap();
    let problem = read(&certificate(&small, MessageDigest::sha256()), &pkcs8(&small)).unwrap_err();
    assert!(matches!(problem, Problem::Refused(_)), "{problem}");
    assert!(problem.to_string().contains("key too small"), "{problem}");
}

#[test]
fn dates_far_off_are_read() {
    for seconds in [0, 1, NOT_AFTER, 253_402_300_799, -1] {
        assert_eq!(unix(&Asn1Time::from_unix(seconds).unwrap()).unwrap(), seconds);
    }
}

#[test]
fn a_secret_is_parsed_once_and_an_equal_one_keeps_the_old_value() {
    let ((crt, key), (crt2, key2)) = (pair(), pair());
    let (mut cluster, mut dirty) = (crate::cluster::Cluster::default(), Dirty::default());
    let mut certificates = Certificates::default();
    let name = Key::new("ns", "s");
    let mut said = Vec::new();
    let mut get = |cluster: &Cluster, now| {
        said.clear();
        let found = certificates.read(cluster, &name, now, |reason, message| said.push((reason, message)));
        (found, said.clone())
    };
    let (none, said) = get(&cluster, 0);
    assert!(none.is_none() && said[0].0 == Reason::SecretNotFound && said[0].1.contains("ns/s"));
    cluster.apply_secret(secret(&crt, &key), &mut dirty);
    let (first, said) = get(&cluster, 0);
    assert!(said.is_empty());
    let (same, said) = get(&cluster, NOT_AFTER + 1);
    assert_eq!(said[0].0, Reason::CertificateExpired);
    assert!(Arc::ptr_eq(first.as_ref().unwrap(), same.as_ref().unwrap()));
    // written anew with the same pair and some text around it
    cluster.apply_secret(secret(&format!("# renewed\n{crt}"), &key), &mut dirty);
    assert!(Arc::ptr_eq(first.as_ref().unwrap(), get(&cluster, 0).0.as_ref().unwrap()));
    cluster.apply_secret(secret(&crt2, &key2), &mut dirty);
    assert_ne!(first, get(&cluster, 0).0);
    cluster.apply_secret(secret(&crt, &key2), &mut dirty);
    let (none, said) = get(&cluster, 0);
    assert!(none.is_none() && said[0].0 == Reason::InvalidTlsSecret && said[0].1.contains("does not belong"));
}
