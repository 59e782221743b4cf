//! Assigns roles to TLS clients by the names in their certificates.
//!
//! The lists in `admin.tcp` assign a [`Role`] to each name. The module `tls` verifies that the
//! client CA has signed the certificate, and `guard` checks the role of each request. A certificate
//! whose name is in neither list has the role `read`, so that a missing entry never permits a
//! change.
//!
//! References: RFC 5280 §4.1.2.6 (subject), §4.2.1.6 (subject alternative names).

use std::fmt;

use axum::http::Method;
use x509_parser::extensions::GeneralName;
use x509_parser::prelude::{FromDer, X509Certificate};

use super::app_state::{CONFIRM, PUT_CONFIG, RELOAD, ROLLBACK, UPGRADE};

/// The permissions of a client. Each role includes the permissions of the roles before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Role {
    /// Permits queries.
    Read,
    /// Permits commands such as drains, weight changes, withdrawals and announcements of VIPs, flow
    /// purges, captures, key counts, and log level changes.
    Operate,
    /// Permits configuration changes (uploads, reloads, confirmations and rollbacks), and upgrades
    /// to another program.
    Configure,
}

impl Role {
    /// Returns the lowest role that permits a request. All methods except `GET` and `HEAD` change
    /// state.
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

/// The certificate names with a role above [`Role::Read`]. All other certificates of the client CA
/// have [`Role::Read`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Roles {
    /// The names with [`Role::Operate`].
    pub operate: Vec<String>,
    /// The names with [`Role::Configure`].
    pub configure: Vec<String>,
}

impl Roles {
    /// Returns the highest role among these names.
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

/// Returns the names in a certificate: the common names of the subject, and the DNS names, email
/// addresses and URIs of the subject alternative names. Returns an empty list if the certificate
/// cannot be parsed.
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

    // Promise: api-roles
    #[test]
    fn names_match_as_a_whole_and_the_highest_role_wins() {
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
        fn a_damaged_certificate_never_panics(at in 0_usize..400, byte: u8, length in 0_usize..600) {
            let mut bytes = certificate();
            if let Some(place) = bytes.get_mut(at) {
                *place = byte;
            }
            bytes.truncate(length);
            let _ = names(&bytes);
        }
    }
}
