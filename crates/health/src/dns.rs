//! The DNS check, over UDP.
//!
//! A check passes if the response has a record of the requested type. The query uses UDP without
//! EDNS, so a response is at most 512 bytes long. A lost query is not repeated before the next
//! attempt.
//!
//! With `probe_mtu`, a second query is padded to a packet of full size. The check accepts any
//! response to this query: a server that limits the length of queries reports an error, but has
//! received the packet.
//!
//! A compression pointer must point strictly backward, so a response cannot cause an endless loop.
//!
//! References: RFC 1035 §4, RFC 5452 §9.1 (fields that must match), RFC 6891 §6.1 (EDNS) and RFC
//! 7830 (padding).

use std::net::{IpAddr, SocketAddr};

use super::dial::receive;
use super::{Dialer, Failure, Interim, full_size};
use config::{DnsCheck, DnsRecord};

/// Sends one query. Datagrams that do not match the query are ignored.
pub(super) async fn attempt(
    check: &DnsCheck,
    address: IpAddr,
    dialer: &Dialer,
    interim: &Interim,
) -> Result<(), Failure> {
    let mut ids = [0; 4];
    getrandom::fill(&mut ids).map_err(|error| Failure::Local(error.to_string().into()))?;
    let [id, padded_id] = [[ids[0], ids[1]], [ids[2], ids[3]]];
    let query = query(id, &check.name, check.record)
        .ok_or_else(|| Failure::Local(format!("{:?} is not a domain name", check.name).into()))?;
    let peer = SocketAddr::new(address, check.port);
    let socket = dialer.udp(peer).await.map_err(|error| Failure::from(&error))?;
    socket.send(&query).await.map_err(|error| Failure::from(&error))?;
    let mut buffer = vec![0; MAX_ANSWER_BYTES];
    loop {
        let length = receive(&socket, &mut buffer).await?;
        if let Some(health_state) = judge(buffer.get(..length).unwrap_or_default(), &query) {
            health_state?;
            break;
        }
    }
    if !check.probe_mtu {
        return Ok(());
    }
    let padded = |length| padded(&query, padded_id, length);
    let is_response = |answer: &[u8]| answer.starts_with(&padded_id) && answer.get(2) >= Some(&RESPONSE);
    full_size::datagram(&socket, dialer, interim, padded, is_response).await
}

/// Returns a query with another ID and with an OPT record that pads it to `length` bytes.
fn padded(query: &[u8], id: [u8; 2], length: usize) -> Vec<u8> {
    let padding = length.saturating_sub(query.len() + OPT_BYTES);
    let padding = u16::try_from(padding).unwrap_or(u16::MAX - PADDING_HEADER);
    let mut padded = query.to_vec();
    padded.splice(..id.len(), id);
    padded.splice(HEADER_BYTES - 1..HEADER_BYTES, [1]); // one additional record
    // The name is the root domain. The class has the length of the longest response over UDP.
    padded.push(0);
    padded.extend_from_slice(&TYPE_OPT.to_be_bytes());
    padded.extend_from_slice(&RESPONSE_BYTES.to_be_bytes());
    padded.extend_from_slice(&[0; 4]); // no extended response code or flags
    padded.extend_from_slice(&(PADDING_HEADER + padding).to_be_bytes());
    padded.extend_from_slice(&PADDING_OPTION.to_be_bytes());
    padded.extend_from_slice(&padding.to_be_bytes());
    padded.resize(padded.len() + usize::from(padding), 0);
    padded
}

/// Encodes a query. Returns `None` if `name` is not a domain name.
pub(super) fn query(id: [u8; 2], name: &str, record: DnsRecord) -> Option<Vec<u8>> {
    let mut query = id.to_vec();
    query.extend_from_slice(&[0x01, 0, 0, 1, 0, 0, 0, 0, 0, 0]); // recursion desired; one question
    for label in name.split('.').filter(|_| name != ".") {
        let length = u8::try_from(label.len()).ok().filter(|length| (1..=MAX_LABEL).contains(length))?;
        query.push(length);
        query.extend_from_slice(label.as_bytes());
    }
    query.push(0);
    if query.len() > HEADER_BYTES + MAX_NAME_BYTES {
        return None;
    }
    query.extend_from_slice(&type_of(record).to_be_bytes());
    query.extend_from_slice(&CLASS_IN.to_be_bytes());
    Some(query)
}

/// Returns the result of a response. Returns `None` if the response does not match the query,
/// because the matching response may still arrive.
pub(super) fn judge(answer: &[u8], query: &[u8]) -> Option<Result<(), Failure>> {
    //= RFC 5452 §9.1
    //# A resolver implementation MUST match responses to all of the following attributes of the query
    if answer.get(..2)? != query.get(..2)? {
        return None;
    }
    Some(judge_answer(answer, query))
}

fn judge_answer(answer: &[u8], query: &[u8]) -> Result<(), Failure> {
    let broken = || Failure::malformed("invalid DNS response");
    let &[_, _, high, low, q0, q1, a0, a1, ..] = answer.first_chunk::<HEADER_BYTES>().ok_or_else(broken)?;
    let (is_response, is_truncated, rcode) = (high & 0x80 != 0, high & 0x02 != 0, low & 0x0f);
    if !is_response {
        return Err(Failure::malformed("DNS query instead of a response"));
    }
    // A server that cannot parse the query reports an error without repeating the question.
    if rcode != 0 {
        return Err(Failure::Rcode(rcode));
    }
    let question = query.get(HEADER_BYTES..).unwrap_or_default();
    let repeated = answer.get(HEADER_BYTES..HEADER_BYTES + question.len());
    if [q0, q1] != [0, 1] || !repeated.is_some_and(|repeated| repeated.eq_ignore_ascii_case(question)) {
        return Err(Failure::malformed("DNS response to a different question"));
    }
    let wanted = question.split_last_chunk::<4>().map(|(_, kind)| *kind).ok_or_else(broken)?;
    let mut at = HEADER_BYTES + question.len();
    let mut found = false;
    for _ in 0..u16::from_be_bytes([a0, a1]) {
        match read_record(answer, at) {
            Some(record) => {
                found |= record.kind == wanted;
                at = record.end;
            }
            // A truncated response may end within a record.
            None if is_truncated => break,
            None => return Err(broken()),
        }
    }
    if found { Ok(()) } else { Err(Failure::NoRecord) }
}

/// A resource record: its type and class, and the offset of the next record.
struct Record {
    kind: [u8; 4],
    end: usize,
}

/// Reads the record at an offset. Returns `None` if the record exceeds the message, its name is
/// invalid, or its data does not fit its type.
fn read_record(message: &[u8], at: usize) -> Option<Record> {
    let at = end_of_name(message, at)?;
    let &[t0, t1, c0, c1, _, _, _, _, l0, l1] = message.get(at..)?.first_chunk::<10>()?;
    let length = usize::from(u16::from_be_bytes([l0, l1]));
    let fits = match u16::from_be_bytes([t0, t1]) {
        TYPE_A => length == 4,
        TYPE_AAAA => length == 16,
        _ => length > 0,
    };
    let end = at + 10 + length;
    (fits && end <= message.len()).then_some(Record { kind: [t0, t1, c0, c1], end })
}

/// Reads a name with its compression pointers. Returns the offset after the name.
fn end_of_name(message: &[u8], start: usize) -> Option<usize> {
    let (mut at, mut from, mut length) = (start, start, 0);
    let (mut end, mut jumps) = (None, 0);
    loop {
        match *message.get(at)? {
            0 => return Some(end.unwrap_or(at + 1)),
            label @ 1..=MAX_LABEL => {
                length += usize::from(label) + 1;
                at += usize::from(label) + 1;
            }
            high @ 0xc0.. => {
                let target = usize::from(high & 0x3f) << 8 | usize::from(*message.get(at + 1)?);
                //= RFC 1035 §4.1.4
                //# an entire domain name or a list of labels at the end of a domain name is replaced with a pointer to a
                //# prior occurance of the same name
                jumps += 1;
                if target < HEADER_BYTES || target >= from || jumps > MAX_JUMPS {
                    return None;
                }
                end = end.or(Some(at + 2));
                (at, from) = (target, target);
            }
            _ => return None,
        }
        if length >= MAX_NAME_BYTES {
            return None;
        }
    }
}

fn type_of(record: DnsRecord) -> u16 {
    match record {
        DnsRecord::A => TYPE_A,
        DnsRecord::Ns => 2,
        DnsRecord::Soa => 6,
        DnsRecord::Txt => 16,
        DnsRecord::Aaaa => TYPE_AAAA,
    }
}

/// The first flag of the third byte, which a response has.
const RESPONSE: u8 = 0x80;
const TYPE_OPT: u16 = 41;
/// The recommended limit of responses over UDP (RFC 9715 §3).
const RESPONSE_BYTES: u16 = 1_232;
const PADDING_OPTION: u16 = 12;
/// The number of bytes in the code and length fields of an option.
const PADDING_HEADER: u16 = 4;
/// The length of the OPT record with an empty padding option.
const OPT_BYTES: usize = 15;
const TYPE_A: u16 = 1;
const TYPE_AAAA: u16 = 28;
const CLASS_IN: u16 = 1;
const HEADER_BYTES: usize = 12;
const MAX_LABEL: u8 = 63;
/// The maximum length of a name, including the length bytes and the root label.
const MAX_NAME_BYTES: usize = 255;
/// The maximum number of pointers in a name. A name has at most this number of labels.
const MAX_JUMPS: u8 = 127;
/// The buffer is much larger than the limit for responses without EDNS, so that longer responses
/// can be read too.
const MAX_ANSWER_BYTES: usize = 4 << 10;

#[cfg(test)]
mod tests;
