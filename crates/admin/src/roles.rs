//! What a client may ask: its role, by the names in its certificate.
//!
//! In: the lists of `admin.tcp`, a certificate that the clients' CA has signed. Out: a [`Role`].
//! Not here: who comes in (`tls`), where a role is asked for (`guard`).
//! A certificate that no list names reads: what is forgotten in the file costs an order, not a machine.
//! Source: RFC 5280 §4.1.2.6 (subject), §4.2.1.6 (subject alternative names).

use std::fmt;

use axum::http::Method;
use x509_parser::extensions::GeneralName;
use x509_parser::prelude::{FromDer, X509Certificate};

use super::app_state::{CONFIRM, PUT_CONFIG, RELOAD, ROLLBACK, UPGRADE};

/// What a client may ask; each role may do what those before it may.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Role {
    /// Questions.
    Read,
    /// Orders: drains, weights, flows, captures, hot keys, the log's level.
    Operate,
    /// Another configuration: put, read from the file again, confirmed, or one that was in force before; another program.
    Configure,
}

impl Role {
    /// The least that a request needs. What is no question is an order.
    pub(super) fn needed(method: &Method, path: &str) -> Self {
        if matches!(*method, Method::GET | Method::HEAD) {
            Self::Read
        } else if matches!(path, PUT_CONFIG | RELOAD | CONFIRM | ROLLBACK | UPGRADE) {
            Self::Configure
        } else {
            Self::Operate
        }
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Read => "read",
            Self::Operate => "operate",
            Self::Configure => "configure",
        })
    }
}

/// Names of certificates with more than [`Role::Read`], which each certificate of the clients' CA has.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Roles {
    /// Those with [`Role::Operate`].
    pub operate: Vec<String>,
    /// Those with [`Role::Configure`].
    pub configure: Vec<String>,
}

impl Roles {
    /// The highest role that one of these names has.
    pub(super) fn of(&self, names: &[String]) -> Role {
        let has =
            |list: &[String]| list.iter().any(|one| names.iter().any(|name| one.eq_ignore_ascii_case(name)));
        if has(&self.configure) {
            Role::Configure
        } else if has(&self.operate) {
            Role::Operate
        } else {
            Role::Read
        }
    }
}

/// The names in a certificate: its subject's common names, and of its alternative names DNS names, mail addresses and URIs.
/// None, when it can't be read.
pub(super) fn names(certificate: &[u8]) -> Vec<String> {
    let Ok((_, certificate)) = X509Certificate::from_der(certificate) else { return Vec::new() };
    let common = certificate.subject().iter_common_name().filter_map(|name| name.as_str().ok());
    let alternative = certificate.subject_alternative_name().ok().flatten();
    let alternative = alternative.iter().flat_map(|found| &found.value.general_names);
    let alternative = alternative.filter_map(|name| match name {
        GeneralName::DNSName(name) | GeneralName::RFC822Name(name) | GeneralName::URI(name) => Some(*name),
        _ => None,
    });
    common.chain(alternative).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rcgen::string::Ia5String;
    use rcgen::{CertificateParams, DnType, KeyPair, SanType};

    use super::*;

    fn certificate() -> Vec<u8> {
        let mut params = CertificateParams::new(vec!["Ops.example.net".into()]).unwrap();
        let ia5 = |text: &str| Ia5String::try_from(text).unwrap();
        params.subject_alt_names.push(SanType::Rfc822Name(ia5("ops@example.net")));
        params.subject_alt_names.push(SanType::URI(ia5("spiffe://example.net/ops")));
        params.distinguished_name.push(DnType::CommonName, "alice");
        params.self_signed(&KeyPair::generate().unwrap()).unwrap().der().to_vec()
    }

    #[test]
    fn every_name_counts_whole_and_the_highest_role_wins() {
        let names = names(&certificate());
        assert_eq!(names, ["alice", "Ops.example.net", "ops@example.net", "spiffe://example.net/ops"]);
        let list = |all: &[&str]| all.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        let role = |operate: &[&str], configure: &[&str]| {
            Roles { operate: list(operate), configure: list(configure) }.of(&names)
        };
        assert_eq!(role(&["alic", "*.example.net", "example.net", ""], &["alice "]), Role::Read);
        for name in ["alice", "ops.example.net", "ops@example.net", "spiffe://example.net/ops"] {
            assert_eq!(role(&[name], &[]), Role::Operate);
            assert_eq!(role(&["alice"], &[name]), Role::Configure);
        }
    }

    proptest! {
        #[test]
        fn a_damaged_certificate_has_some_names_or_none(at in 0_usize..400, byte: u8, length in 0_usize..600) {
            let mut bytes = certificate();
            if let Some(place) = bytes.get_mut(at) {
                *place = byte;
            }
            bytes.truncate(length);
            let _ = names(&bytes);
        }
    }
}
