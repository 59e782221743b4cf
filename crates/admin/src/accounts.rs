//! Looks up users and groups by name in `/etc/passwd` and `/etc/group`.
//!
//! The module parses the files itself. The function `getpwnam` of the C library is not used,
//! because it loads NSS modules and therefore does not work in a static binary. Accounts from other
//! sources (systemd, LDAP) are therefore not found.
//!
//! References: passwd(5), group(5).

use std::fs;

/// A user account with its groups.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct User {
    /// The user ID.
    pub id: u32,
    /// The group IDs, with the primary group first.
    pub groups: Vec<u32>,
}

/// Returns the user with this name, or `None` if `/etc/passwd` cannot be read or has no such user.
pub fn user(name: &str) -> Option<User> {
    user_in(name, &read("/etc/passwd"), &read("/etc/group"))
}

/// Returns the ID of the group with this name, or `None` if `/etc/group` cannot be read or has no
/// such group.
pub(crate) fn group(name: &str) -> Option<u32> {
    group_in(name, &read("/etc/group"))
}

fn read(path: &str) -> String {
    fs::read(path).map_or_else(|_| String::new(), |bytes| String::from_utf8_lossy(&bytes).into_owned())
}

fn user_in(name: &str, users: &str, groups: &str) -> Option<User> {
    // The format of a line is `name:password:UID:GID:...`.
    let fields: Vec<&str> = lines_of(users).find(|fields| fields.first() == Some(&name))?;
    let (id, own) = (fields.get(2)?.parse().ok()?, fields.get(3)?.parse().ok()?);
    // The format of a line is `name:password:GID:member,member`.
    let of_members = lines_of(groups).filter(|fields| {
        fields.get(3).is_some_and(|members| members.split(',').any(|member| member == name))
    });
    let further = of_members.filter_map(|fields| fields.get(2)?.parse().ok()).filter(|group| *group != own);
    Some(User { id, groups: std::iter::once(own).chain(further).collect() })
}

fn group_in(name: &str, groups: &str) -> Option<u32> {
    lines_of(groups).find(|fields| fields.first() == Some(&name))?.get(2)?.parse().ok()
}

fn lines_of(text: &str) -> impl Iterator<Item = Vec<&str>> {
    text.lines().map(|line| line.trim().split(':').collect())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const USERS: &str =
        "root:x:0:0:root:/root:/bin/sh\nlb:x:990:991::/:/bin/false\n+nis\nodd:x:many:1::/:\nlbx:x:1:1::/:\n";
    const GROUPS: &str = "root:x:0:\nlb:x:991:lb\nadm:x:4:syslog,lb\nssl:x:7:lbx,xlb\n:::\nodd:x:-1:lb\n";

    #[test]
    fn names_match_completely_and_primary_group_is_first() {
        assert_eq!(user_in("lb", USERS, GROUPS), Some(User { id: 990, groups: vec![991, 4] }));
        assert_eq!(user_in("lbx", USERS, GROUPS), Some(User { id: 1, groups: vec![1, 7] }));
        assert_eq!(user_in("odd", USERS, GROUPS), None);
        assert_eq!(user_in("nobody", USERS, GROUPS), None);
        assert_eq!(
            (group_in("adm", GROUPS), group_in("odd", GROUPS), group_in("x", GROUPS)),
            (Some(4), None, None)
        );
    }

    #[test]
    fn root_is_found_on_this_machine() {
        assert_eq!(user("root").map(|user| user.id), Some(0));
        assert_eq!(group("root"), Some(0));
    }

    proptest! {
        #[test]
        fn arbitrary_files_never_panic(name in "[a-z:]{0,2}", users in "[a-b0-9:,\n]{0,40}", groups in "[a-b0-9:,\n]{0,40}") {
            let _ = (user_in(&name, &users, &groups), group_in(&name, &groups));
        }
    }
}
