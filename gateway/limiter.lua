-- The limits of one tenant in Redis: `policies/ledger.py`, rule by rule, atomically. The theory is told there.
--
-- KEYS[1]  kvlane:1:{tenant}:state   hash: limits, grants, and the tenant's clock
-- KEYS[2]  kvlane:1:{tenant}:due     sorted set: grant -> when its lease expires, or when it is forgotten once swept
--
-- ARGV[1]  reserve | settle | renew
-- ARGV[2]  0: the clock is Redis TIME. Else microseconds since 1970, for tests only
--
-- reserve  ARGV[3] grant, ARGV[4] lease in microseconds, then four for each take:
--              name (r:FIELD rate, p:FIELD parallel, d:FIELD day, m:FIELD month), amount, kept, most
--          -> three integers for each take: remaining, reset_us, wait_us. Granted if all waits are 0; -1: never
-- settle   ARGV[3] grant, then for each take, in the same order, what was really used (of slots: any number)
--          -> 1: settled now; 0: not known (settled before, forgotten, never granted)
-- renew    ARGV[3] lease in microseconds, then up to 1000 grants
--          -> for each grant 1: lives on; 0: not known
--
-- Fields of the hash   seen, ahead    the tenant's clock at the last change; how far it is ahead of Redis
--                      until          when all of this may be forgotten, by the tenant's clock
--                      r:FIELD        tat_us                   p:FIELD   slots held
--                      d:FIELD        "period_end_us used"     m:FIELD   the same
--                      g:GRANT        msgpack: {is_live, then four for each take: name, amount, kept, period_end_us}
--
-- For Redis 6.2 and later. The 1 in the keys is the version of this layout: gateways of two versions share no state.
-- Numbers are doubles here, whole and exact up to 2^53: microseconds until the year 2255. `..` keeps only 14 digits of
-- them, so what becomes text is formatted; arguments of redis.call have 17. No key may be evicted: a Redis that is full
-- should refuse (maxmemory-policy noeviction, or a volatile one with room to spare).

local REMEMBER, SLOT_WAIT, SWEEP = 3600e6, 1e6, 64 -- as in ledger.py
local MINUTE, DAY = 60e6, 86400e6

local call, floor, max, sub = redis.call, math.floor, math.max, string.sub
local state, due = KEYS[1], KEYS[2]

local now = tonumber(ARGV[2])
if now == 0 then
    local time = call('TIME')
    now = time[1] * 1e6 + time[2]
end

-- The hash: read once, changed here, written at the end.

local cells, changed = {}, {}

local function fetch(names)
    local values = call('HMGET', state, unpack(names))
    for at = 1, #names do
        if not changed[names[at]] then
            cells[names[at]] = values[at]
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
    cells[name], changed[name] = value, true
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

local function period_end(kind) -- 0: it has no period
    if kind == 'r' or kind == 'p' then
        return 0
    end
    local day = now - math.fmod(now, DAY)
    if kind == 'd' then
        return day + DAY
    end
    local days = day / DAY
    local later = days - day_of_month(days) + 32 -- some day of the next month
    return (later - day_of_month(later) + 1) * DAY
end

-- The tenant's clock, and how long the keys live by it: whole minutes, so that few calls have to say so.

fetch({'seen', 'ahead', 'until'})
local ahead, forgotten = tonumber(cells['ahead'] or 0), tonumber(cells['until'] or 0)
local known_until = forgotten
local clock = now + ahead
local behind = tonumber(cells['seen'] or 0) - clock
if behind > 0 then
    clock, forgotten = clock + behind, forgotten + behind
    put('ahead', ahead + behind)
end

local function keep_until(time)
    if time > forgotten then
        forgotten = floor(time / MINUTE) * MINUTE + MINUTE
    end
end

local function ttl_ms() -- a minute more than has to be
    return floor((max(0, forgotten - clock) + MINUTE) / 1e3)
end

-- Limits. The level is what is taken of one now: microseconds, slots, tokens.

local function level_of(kind, name, ends) -- nil: nothing known, of the period that ends then
    local value = get(name)
    if not value then
        return nil
    elseif kind == 'p' then
        return tonumber(value)
    elseif kind == 'r' then
        return max(0, tonumber(value) - clock)
    end
    local its_end, used = string.match(value, '(%d+) (%d+)')
    return tonumber(its_end) == ends and tonumber(used) or nil
end

local function set_level(kind, name, ends, level)
    if kind == 'p' then
        put(name, level > 0 and level)
    elseif kind == 'r' then
        put(name, level > 0 and clock + level)
        keep_until(clock + level)
    else
        put(name, string.format('%.0f %.0f', ends, max(0, level)))
        keep_until(clock + ends - now)
    end
end

-- Grants. A record is {is_live, name, amount, kept, ends, name, ...}.

local function read(grant)
    local packed = get('g:' .. grant)
    return packed and cmsgpack.unpack(packed)
end

local function lease(grant, record, expires)
    put('g:' .. grant, cmsgpack.pack(record))
    keep_until(expires + (record[1] and REMEMBER or 0))
    call('ZADD', due, expires, grant)
    call('PEXPIRE', due, ttl_ms())
end

local function forget(grant)
    put('g:' .. grant, false)
    call('ZREM', due, grant)
end

local function hold(record, sign) -- its slots
    for at = 2, #record, 4 do
        local name = record[at]
        if sub(name, 1, 1) == 'p' then
            set_level('p', name, 0, (level_of('p', name) or 0) + sign * record[at + 1])
        end
    end
end

local function correct(record, at, final)
    local name, ends = record[at], record[at + 3]
    local kind = sub(name, 1, 1)
    if kind == 'p' then
        return
    end
    local delta = final - record[at + 1]
    record[at + 1] = final
    local level = level_of(kind, name, ends)
    if level or kind == 'r' then
        set_level(kind, name, ends, (level or 0) + delta)
    end
end

local function sweep()
    local swept = call('ZRANGEBYSCORE', due, '-inf', clock, 'WITHSCORES', 'LIMIT', 0, SWEEP)
    for at = 1, #swept, 2 do
        local grant, expires = swept[at], tonumber(swept[at + 1])
        local record = read(grant)
        if record and record[1] then
            record[1] = false
            hold(record, -1)
            for take = 2, #record, 4 do
                correct(record, take, record[take + 2])
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

local function wait_for(kind, ends, level, amount, most)
    if amount > most then
        return -1
    elseif level + amount <= most then
        return 0
    elseif kind == 'r' then
        return level + amount - most
    end
    return kind == 'p' and SLOT_WAIT or ends - now
end

local function reserve(grant, ttl)
    local names = {'g:' .. grant}
    for at = 5, #ARGV, 4 do
        names[#names + 1] = ARGV[at]
    end
    fetch(names)
    local is_known, passes = get(names[1]), true
    local record, levels, waits = {true}, {}, {}
    for at = 5, #ARGV, 4 do
        local name, amount = ARGV[at], tonumber(ARGV[at + 1])
        local kind = sub(name, 1, 1)
        local ends = period_end(kind)
        local level = level_of(kind, name, ends) or 0
        local wait = is_known and 0 or wait_for(kind, ends, level, amount, tonumber(ARGV[at + 3]))
        passes = passes and wait == 0
        levels[at], waits[at] = level, wait
        local into = at - 3
        record[into], record[into + 1], record[into + 2], record[into + 3] = name, amount, tonumber(ARGV[at + 2]), ends
    end
    local takes = passes and not is_known
    local reply = {}
    for at = 5, #ARGV, 4 do
        local name, ends, level = ARGV[at], record[at], levels[at]
        local kind = sub(name, 1, 1)
        if takes then
            level = level + record[at - 2]
            set_level(kind, name, ends, level)
        end
        local last = #reply
        reply[last + 1] = max(0, ARGV[at + 3] - level)
        reply[last + 2] = kind == 'r' and level or max(0, ends - now)
        reply[last + 3] = waits[at]
    end
    if takes then
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
        hold(record, -1)
    end
    for at = 2, #record, 4 do
        correct(record, at, tonumber(ARGV[4 + (at - 2) / 4]))
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
                hold(record, 1)
            end
            lease(ARGV[at], record, clock + ttl)
        end
        reply[#reply + 1] = record and 1 or 0
    end
    return reply
end

local function write()
    local set, gone = {'seen', clock}, {}
    if forgotten ~= known_until then
        put('until', forgotten)
    end
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
    if forgotten ~= known_until then
        call('PEXPIRE', state, ttl_ms())
    end
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
if next(changed) then
    write()
end
return reply
