-- The limits of one tenant in Redis: `policies/ledger.py`, rule by rule, atomically. The theory is told there.
--
-- KEYS[1]  kvlane:1:{tenant}:state   hash: limits, grants, and the tenant's clock
-- KEYS[2]  kvlane:1:{tenant}:due     sorted set: grant -> when its lease expires, or when it is forgotten once swept
--
-- ARGV[1]  reserve | settle | renew
-- ARGV[2]  0: the clock is Redis TIME. Else microseconds since 1970, for tests only
--
-- reserve  ARGV[3] grant, ARGV[4] lease in microseconds, then five for each take:
--              kind (r rate, p parallel, d day, m month), field, amount, kept, most
--          -> three integers for each take: remaining, reset_us, wait_us. Granted if all waits are 0; -1: never
-- settle   ARGV[3] grant, then for each take, in the same order, what was really used (of slots: any number)
--          -> 1: settled now; 0: not known (settled before, forgotten, never granted)
-- renew    ARGV[3] lease in microseconds, then up to 1000 grants
--          -> for each grant 1: lives on; 0: not known
--
-- Fields of the hash:  seen, ahead    the tenant's clock at the last change; how far it is ahead of Redis
--                      until          when all of this may be forgotten, by the tenant's clock
--                      r:FIELD        tat_us                   p:FIELD   slots held
--                      d:FIELD        "period_end_us used"     m:FIELD   the same
--                      g:GRANT        msgpack: {is_live, then five for each take: kind, name, amount, kept, period_end_us}
--
-- For Redis 6.2 and later. The 1 in the keys is the version of this layout: gateways of two versions share no state.
-- Numbers are doubles here, whole and exact up to 2^53: microseconds until the year 2255.

local REMEMBER, SLOT_WAIT, SWEEP = 3600e6, 1e6, 64 -- as in ledger.py
local SLACK = 60e6 -- keys live that much longer than they have to
local DAY = 86400e6

local call, floor, max = redis.call, math.floor, math.max
local state, due = KEYS[1], KEYS[2]

local now = tonumber(ARGV[2])
if now == 0 then
    local time = call('TIME')
    now = time[1] * 1e6 + time[2]
end

local function whole(number)
    return string.format('%.0f', number)
end

-- The hash: read once, changed here, written at the end.

local cells, changed, is_changed = {}, {}, false

local function fetch(names)
    local values = call('HMGET', state, unpack(names))
    for at, name in ipairs(names) do
        if not changed[name] then
            cells[name] = values[at]
        end
    end
end

local function get(name)
    if cells[name] == nil then
        cells[name] = call('HGET', state, name)
    end
    return cells[name]
end

local function put(name, value) -- false: gone
    cells[name], changed[name], is_changed = value, true, true
end

-- Days and months (day of the month: Howard Hinnant, "chrono-compatible low-level date algorithms").

local function day_of_month(days)
    local z = days + 719468
    local doe = z % 146097
    local yoe = floor((doe - floor(doe / 1460) + floor(doe / 36524) - floor(doe / 146096)) / 365)
    local doy = doe - (365 * yoe + floor(yoe / 4) - floor(yoe / 100))
    local month = floor((5 * doy + 2) / 153)
    return doy - floor((153 * month + 2) / 5) + 1
end

local function period_end(kind)
    local day = now - math.fmod(now, DAY)
    if kind == 'd' then
        return day + DAY
    end
    local days = day / DAY
    local later = days - day_of_month(days) + 32 -- some day of the next month
    return (later - day_of_month(later) + 1) * DAY
end

-- The tenant's clock, and how long the keys live by it.

fetch({'seen', 'ahead', 'until'})
local ahead, forgotten = tonumber(cells['ahead'] or 0), tonumber(cells['until'] or 0)
local clock = now + ahead
local behind = tonumber(cells['seen'] or 0) - clock
if behind > 0 then
    ahead, clock, forgotten = ahead + behind, clock + behind, forgotten + behind
    put('ahead', whole(ahead))
end

local function keep_until(time)
    forgotten = max(forgotten, time)
end

-- Limits.

local function tat_of(name)
    return max(tonumber(get(name) or 0), clock)
end

local function count_of(kind, name, ends)
    local value = get(name)
    if not value then
        return 0
    elseif kind == 'p' then
        return tonumber(value)
    end
    local its_end, used = string.match(value, '(%d+) (%d+)')
    return tonumber(its_end) == ends and tonumber(used) or 0
end

local function hold(name, slots)
    local held = count_of('p', name) + slots
    put(name, held > 0 and whole(held))
end

local function set_tat(name, tat)
    put(name, tat > clock and whole(tat))
    keep_until(tat)
end

local function set_used(name, ends, used)
    put(name, whole(ends) .. ' ' .. whole(used))
    keep_until(clock + ends - now)
end

-- Grants. A record is {is_live, kind, name, amount, kept, ends, kind, ...}.

local function read(grant)
    local packed = get('g:' .. grant)
    return packed and cmsgpack.unpack(packed)
end

local function lease(grant, record, expires)
    put('g:' .. grant, cmsgpack.pack(record))
    call('ZADD', due, whole(expires), grant)
    keep_until(expires + (record[1] and REMEMBER or 0))
end

local function forget(grant)
    put('g:' .. grant, false)
    call('ZREM', due, grant)
end

local function hold_all(record, sign)
    for at = 2, #record, 5 do
        if record[at] == 'p' then
            hold(record[at + 1], sign * record[at + 2])
        end
    end
end

local function correct(record, at, final)
    local kind, name, ends = record[at], record[at + 1], record[at + 4]
    local delta = final - record[at + 2]
    if kind == 'p' then
        return
    end
    record[at + 2] = final
    if kind == 'r' then
        set_tat(name, tat_of(name) + delta)
    else
        local value = get(name)
        if value and tonumber(string.match(value, '%d+')) == ends then
            set_used(name, ends, max(0, count_of(kind, name, ends) + delta))
        end
    end
end

local function sweep()
    local swept = call('ZRANGEBYSCORE', due, '-inf', whole(clock), 'WITHSCORES', 'LIMIT', 0, SWEEP)
    for at = 1, #swept, 2 do
        local grant, expires = swept[at], tonumber(swept[at + 1])
        local record = read(grant)
        if record and record[1] then
            record[1] = false
            hold_all(record, -1)
            for take = 2, #record, 5 do
                correct(record, take, record[take + 3])
            end
            expires = expires + REMEMBER
        end
        if not record or expires <= clock then
            forget(grant)
        else
            lease(grant, record, expires)
        end
    end
end

-- Operations.

local function wait_for(kind, name, amount, most, ends)
    if amount > most then
        return -1
    elseif kind == 'r' then
        return max(0, tat_of(name) - clock + amount - most)
    elseif count_of(kind, name, ends) + amount <= most then
        return 0
    end
    return kind == 'p' and SLOT_WAIT or ends - now
end

local function reserve(grant, ttl)
    local names = {'g:' .. grant}
    for at = 5, #ARGV, 5 do
        names[#names + 1] = ARGV[at] .. ':' .. ARGV[at + 1]
    end
    fetch(names)
    local is_known, passes = get(names[1]), true
    local record, waits, mosts = {true}, {}, {}
    for take = 2, #names do
        local at, name = take * 5 - 5, names[take]
        local kind, amount, most = ARGV[at], tonumber(ARGV[at + 2]), tonumber(ARGV[at + 4])
        local ends = (kind == 'd' or kind == 'm') and period_end(kind) or 0
        local wait = is_known and 0 or wait_for(kind, name, amount, most, ends)
        passes = passes and wait == 0
        waits[take], mosts[take] = wait, most
        for _, value in ipairs({kind, name, amount, tonumber(ARGV[at + 3]), ends}) do
            record[#record + 1] = value
        end
    end
    local reply = {}
    for take = 2, #names do
        local at, name = take * 5 - 8, names[take]
        local kind, amount, ends = record[at], record[at + 2], record[at + 4]
        local takes, left, reset = passes and not is_known, 0, 0
        if kind == 'r' then
            if takes then
                set_tat(name, tat_of(name) + amount)
            end
            reset = tat_of(name) - clock
            left = reset
        else
            if takes and kind == 'p' then
                hold(name, amount)
            elseif takes then
                set_used(name, ends, count_of(kind, name, ends) + amount)
            end
            reset = kind == 'p' and 0 or ends - now
            left = count_of(kind, name, ends)
        end
        reply[#reply + 1] = max(0, mosts[take] - left)
        reply[#reply + 1] = reset
        reply[#reply + 1] = waits[take]
    end
    if passes and not is_known then
        lease(grant, record, clock + ttl)
    end
    return reply
end

local function settle(grant)
    local record = read(grant)
    if not record then
        return 0
    end
    if record[1] then
        hold_all(record, -1)
    end
    for at = 2, #record, 5 do
        correct(record, at, tonumber(ARGV[4 + (at - 2) / 5]))
    end
    forget(grant)
    return 1
end

local function renew(ttl)
    local reply = {}
    for at = 4, #ARGV do
        local record = read(ARGV[at])
        if record then
            if not record[1] then
                record[1] = true
                hold_all(record, 1)
            end
            lease(ARGV[at], record, clock + ttl)
        end
        reply[#reply + 1] = record and 1 or 0
    end
    return reply
end

local function write()
    local set, gone = {'seen', whole(clock), 'until', whole(forgotten)}, {}
    for name in pairs(changed) do
        if cells[name] then
            set[#set + 1] = name
            set[#set + 1] = cells[name]
        else
            gone[#gone + 1] = name
        end
    end
    call('HSET', state, unpack(set))
    if #gone > 0 then
        call('HDEL', state, unpack(gone))
    end
    local ttl_ms = whole((max(forgotten, clock) - clock + SLACK) / 1e3)
    call('PEXPIRE', state, ttl_ms)
    call('PEXPIRE', due, ttl_ms)
end

sweep()
local reply
if ARGV[1] == 'reserve' then
    reply = reserve(ARGV[3], tonumber(ARGV[4]))
elseif ARGV[1] == 'settle' then
    reply = settle(ARGV[3])
else
    reply = renew(tonumber(ARGV[3]))
end
if is_changed then
    write()
end
return reply
